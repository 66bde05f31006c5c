/* SPDX-License-Identifier: Apache-2.0 */
/* Messages as -F and the other flags of nolag sub want them shown. */
#include "clients/cli/format.h"

#include <stdio.h>
#include <time.h>

#include "clients/cli/json.h"
#include "protocol/base64.h"

/* Decodes {"$bytes":"..."} and {"$str":"..."}; with a second key it is none: see PROTOCOL.md. */
static bool put_tagged_bytes(struct nl_buffer *out, struct nl_slice data) {
    struct nolag_json_walk walk;
    struct nl_slice key, value, more;

    if (data.ptr[0] != '{' || !nolag_json_walk(&walk, data) || !nolag_json_member(&walk, &key, &value))
        return false;
    if (!nl_slice_equal(key, nl_slice_str("$bytes")) && !nl_slice_equal(key, nl_slice_str("$str")))
        return false;
    if (value.len < 2 || value.ptr[0] != '"' || nolag_json_member(&walk, &key, &more))
        return false;
    return nl_base64_decode(out, nl_slice(value.ptr + 1, value.len - 2));
}

static void put_payload(struct nl_buffer *out, const struct nolag_event *e, const struct nolag_options *o) {
    if (e->data.len == 0 || (o->bytes && put_tagged_bytes(out, e->data)))
        return;
    nolag_json_text(out, e->data);
}

static void put_hex(struct nl_buffer *out, struct nl_slice bytes) {
    static const char digits[] = "0123456789abcdef";

    for (size_t i = 0; i < bytes.len; i++) {
        nl_buffer_append_byte(out, (uint8_t)digits[bytes.ptr[i] >> 4]);
        nl_buffer_append_byte(out, (uint8_t)digits[bytes.ptr[i] & 15]);
    }
}

static void put_about_payload(struct nl_buffer *out, char letter, const struct nolag_event *e,
                              const struct nolag_options *o) {
    struct nl_buffer payload;
    char text[24];

    nl_buffer_init(&payload);
    put_payload(&payload, e, o);
    if (letter == 'x') {
        put_hex(out, nl_slice(payload.bytes, payload.len));
    } else {
        snprintf(text, sizeof text, "%zu", payload.len);
        nl_buffer_append_str(out, text);
    }
    nl_buffer_deinit(&payload);
}

static void put_time(struct nl_buffer *out, char letter) {
    struct timespec now;
    struct tm local;
    char text[64];

    clock_gettime(CLOCK_REALTIME, &now);
    if (letter == 'U')
        snprintf(text, sizeof text, "%lld.%09ld", (long long)now.tv_sec, now.tv_nsec);
    else
        strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%S%z", localtime_r(&now.tv_sec, &local));
    nl_buffer_append_str(out, text);
}

/* C0 but newline and tab, DEL, and C1 as UTF-8 writes it: what can drive a terminal. */
static void defuse(struct nl_buffer *out, size_t from) {
    for (size_t i = from; i < out->len; i++) {
        uint8_t *c = &out->bytes[i];

        if ((*c < ' ' && *c != '\n' && *c != '\t') || *c == 0x7f)
            *c = '?';
        else if (*c == 0xc2 && i + 1 < out->len && c[1] < 0xa0)
            c[0] = c[1] = '?';
    }
}

static void put_field(struct nl_buffer *out, char letter, const struct nolag_event *e,
                      const struct nolag_options *o) {
    switch (letter) {
    case 't':
        nolag_json_text(out, e->topic);
        break;
    case 'p':
        put_payload(out, e, o);
        break;
    case 'l':
    case 'x':
        put_about_payload(out, letter, e, o);
        break;
    case 'j':
        nl_buffer_append(out, e->line.ptr, e->line.len);
        break;
    case 'f':
        nolag_json_text(out, e->filter.len ? e->filter : e->filters);
        break;
    case 'i':
        nolag_json_text(out, e->msg_id);
        break;
    case 'F':
        nolag_json_text(out, e->from);
        break;
    case 'U':
    case 'I':
        put_time(out, letter);
        break;
    default:
        nl_buffer_append_byte(out, '%');
    }
}

/* The character that a backslash and letter stand for, or -1. */
static int escape(char letter) {
    static const char from[] = "ntr0ae\\", to[] = "\n\t\r\0\a\033\\";
    const char *found = letter ? strchr(from, letter) : NULL;

    return found ? to[found - from] : -1;
}

const char *nolag_format_unknown(const char *format) {
#define X(letter, text) letter
    static const char known[] = NOLAG_FORMATS(X);
#undef X

    for (const char *p = format; *p; p++) {
        if (*p == '%' && !memchr(known, *++p, sizeof known - 1))
            return p - 1;
        if (*p == '\\' && escape(*++p) < 0)
            return p - 1;
    }
    return NULL;
}

static void put_format(struct nl_buffer *out, const char *format, const struct nolag_event *e,
                       const struct nolag_options *o, bool terminal) {
    for (const char *p = format; *p; p++) {
        size_t from = out->len;

        if (*p == '%') {
            put_field(out, *++p, e, o);
            if (terminal)
                defuse(out, from);
        } else if (*p == '\\') {
            nl_buffer_append_byte(out, (uint8_t)escape(*++p));
        } else {
            nl_buffer_append_byte(out, (uint8_t)*p);
        }
    }
}

void nolag_format(struct nl_buffer *out, const struct nolag_event *e, const struct nolag_options *o,
                  bool terminal) {
    const char *format = o->json ? "%j" : o->format ? o->format : o->verbose ? "%t %p" : "%p";

    put_format(out, format, e, o, terminal);
    if (!o->no_newline)
        nl_buffer_append_byte(out, '\n');
}
