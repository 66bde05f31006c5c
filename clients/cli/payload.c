/* SPDX-License-Identifier: Apache-2.0 */
/* From the text or bytes of the command line, a file or stdin to the JSON of a payload. */
#include "clients/cli/payload.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "clients/cli/json.h"
#include "protocol/base64.h"
#include "protocol/transcode.h"

/* Far more than any broker takes: a wrong file is refused before it is read into memory. */
#define CONTENT_MAX ((size_t)16 << 20)
#define READ_SIZE ((size_t)64 << 10)

static void put_bytes(struct nl_buffer *out, struct nl_slice content) {
    nl_buffer_append_str(out, "{\"$bytes\":\"");
    nl_base64_encode(out, content);
    nl_buffer_append_str(out, "\"}");
}

/* A slip in JSON is sent as a string, as told in the help: say so, once. */
static void note_near_json(struct nl_slice content, const struct nolag_options *o) {
    static bool noted;

    if (noted || o->quiet || content.len == 0 || (content.ptr[0] != '{' && content.ptr[0] != '['))
        return;
    noted = true;
    nolag_say("note: this looks like JSON but is not, so it is sent as a string (--string: on purpose)");
}

enum nolag_exit nolag_payload(struct nl_buffer *out, struct nl_slice content, const struct nolag_options *o) {
    bool text = nl_utf8_valid(content);

    if (o->as_string && !text) {
        nolag_say("this is not UTF-8, so it cannot be sent as a string");
        return NOLAG_FAILED;
    }
    if (o->as_bytes || !text) {
        put_bytes(out, content);
        return NOLAG_OK;
    }
    switch (o->as_string ? NOLAG_JSON_NOT : nolag_json_check(content)) {
    case NOLAG_JSON_VALUE:
        nolag_json_compact(out, content);
        return NOLAG_OK;
    case NOLAG_JSON_DEEP:
        nolag_say("this JSON nests too deep to be sent");
        return NOLAG_FAILED;
    case NOLAG_JSON_NOT:
        break;
    }
    if (!o->as_string)
        note_near_json(content, o);
    nl_json_string(out, content);
    return NOLAG_OK;
}

static enum nolag_exit read_all(struct nl_buffer *out, int fd, const char *name) {
    for (;;) {
        ssize_t n = read(fd, nl_buffer_reserve(out, READ_SIZE), READ_SIZE);

        if (n == 0)
            return NOLAG_OK;
        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0) {
            nolag_say("%s: %s", name, strerror(errno));
            return NOLAG_FAILED;
        }
        out->len += (size_t)n;
        if (out->len > CONTENT_MAX) {
            nolag_say("%s: more than %zu bytes, which no broker takes", name, CONTENT_MAX);
            return NOLAG_FAILED;
        }
    }
}

enum nolag_exit nolag_payload_read(struct nl_buffer *out, const char *path) {
    enum nolag_exit code;
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : STDIN_FILENO;

    if (fd < 0) {
        nolag_say("%s: %s", path, strerror(errno));
        return NOLAG_FAILED;
    }
    code = read_all(out, fd, path ? path : "stdin");
    if (path)
        close(fd);
    return code;
}
