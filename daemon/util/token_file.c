/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/util/token_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "protocol/alloc.h"

enum {
    TOKEN_LEN = 4096,
    TOKEN_ROOM = TOKEN_LEN + 64, /* with the white space behind it */
};

/* Reads up to size bytes. Returns how many, or -1 with errno. */
static ssize_t read_all(int fd, char *bytes, size_t size) {
    size_t len = 0;
    ssize_t n;

    do {
        n = read(fd, bytes + len, size - len);
        if (n > 0)
            len += (size_t)n;
    } while ((n > 0 && len < size) || (n < 0 && errno == EINTR));
    return n < 0 ? -1 : (ssize_t)len;
}

/* Returns why the content is no token, or NULL; cuts the white space behind it. */
static const char *check_token(char *bytes, size_t *len) {
    if (*len == TOKEN_ROOM)
        return "is longer than 4096 bytes";
    while (*len > 0 && (bytes[*len - 1] == ' ' || (bytes[*len - 1] >= '\t' && bytes[*len - 1] <= '\r')))
        (*len)--;
    if (*len == 0)
        return "is empty";
    if (*len > TOKEN_LEN)
        return "is longer than 4096 bytes";
    if (memchr(bytes, '\n', *len))
        return "has more than one line";
    for (size_t i = 0; i < *len; i++) {
        if ((unsigned char)bytes[i] < 0x20 || bytes[i] == 0x7f)
            return "has a control character in it";
        if (bytes[i] == ' ')
            return "has a blank in it, which no token has";
    }
    if ((unsigned char)bytes[0] == 0xef && *len >= 3 && memcmp(bytes, "\xef\xbb\xbf", 3) == 0)
        return "begins with a byte order mark";
    return NULL;
}

/* Returns why the file must not be used, or NULL. */
static const char *check_token_file(int fd) {
    struct stat st;

    if (fstat(fd, &st) < 0)
        return "cannot be examined";
    if (!S_ISREG(st.st_mode))
        return "is not a regular file";
    if (st.st_mode & (S_IROTH | S_IWOTH))
        return "can be read or written by everyone (chmod o= takes that away)";
    return NULL;
}

static const char *read_token(int fd, char **token) {
    char bytes[TOKEN_ROOM];
    const char *why = check_token_file(fd);
    ssize_t n = why ? 0 : read_all(fd, bytes, sizeof(bytes));
    size_t len = n > 0 ? (size_t)n : 0;

    if (!why)
        why = n < 0 ? "cannot be read" : check_token(bytes, &len);
    if (!why)
        *token = nl_strndup(bytes, len);
    explicit_bzero(bytes, sizeof(bytes));
    return why;
}

/* Reads as "the file …". */
static const char *open_failure(int error) {
    switch (error) {
    case ENOENT:
        return "does not exist";
    case EACCES:
        return "cannot be opened: permission denied";
    case ENOTDIR:
        return "is in something that is not a folder";
    default:
        return "cannot be opened";
    }
}

/* Opens without blocking: the file could be a pipe that nobody writes to. */
const char *nl_token_file_read(const char *path, char **token) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    const char *why;

    if (fd < 0)
        return open_failure(errno);
    why = read_token(fd, token);
    close(fd);
    return why;
}
