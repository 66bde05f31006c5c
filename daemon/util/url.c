/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/util/url.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

#include "protocol/alloc.h"
#include "protocol/buffer.h"

enum { HOST_LEN = 253 };

static bool is_host_name(const char *s, size_t len) {
    if (len == 0 || len > HOST_LEN || s[0] == '.' || s[0] == '-')
        return false;
    for (size_t i = 0; i < len; i++) {
        bool dots = s[i] == '.' && i + 1 < len && s[i + 1] == '.';

        if (dots || !(isascii((unsigned char)s[i]) && (isalnum((unsigned char)s[i]) || strchr("-._", s[i]))))
            return false;
    }
    return true;
}

static bool is_ipv6_literal(const char *s, size_t len) {
    char text[INET6_ADDRSTRLEN];
    struct in6_addr address;

    if (len >= sizeof(text))
        return false;
    memcpy(text, s, len);
    text[len] = '\0';
    return inet_pton(AF_INET6, text, &address) == 1;
}

/* Finds the host in [s, end); returns where it ends in the url, or NULL when there is none. */
static const char *split_host(const char *s, const char *end, char **host) {
    const char *stop;

    if (*s == '[') {
        stop = memchr(s, ']', (size_t)(end - s));
        if (!stop || !is_ipv6_literal(s + 1, (size_t)(stop - s - 1)))
            return NULL;
        *host = nl_strndup(s + 1, (size_t)(stop - s - 1));
        return stop + 1;
    }
    stop = memchr(s, ':', (size_t)(end - s));
    stop = stop ? stop : end;
    if (!is_host_name(s, (size_t)(stop - s)))
        return NULL;
    *host = nl_strndup(s, (size_t)(stop - s));
    return stop;
}

/* ":1" to ":65535", or nothing at all. */
static bool split_port(const char *s, const char *end, uint16_t *port) {
    unsigned long number = 0;

    if (s == end)
        return true;
    if (*s++ != ':' || s == end)
        return false;
    for (; s < end; s++) {
        if (*s < '0' || *s > '9')
            return false;
        number = number * 10 + (unsigned long)(*s - '0');
        if (number > UINT16_MAX)
            return false;
    }
    *port = (uint16_t)number;
    return number > 0;
}

/* Path and query go into the request line as they are: nothing in them may end it. A fragment has no place
 * there. */
static char *split_path(const char *s) {
    struct nl_buffer path;

    for (const char *c = s; *c; c++) {
        if (*c <= 0x20 || *c >= 0x7f || *c == '#')
            return NULL;
    }
    nl_buffer_init(&path);
    nl_buffer_format(&path, "%s%s", *s == '/' ? "" : "/", s);
    return nl_buffer_take_text(&path);
}

bool nl_url_parse(const char *url, bool *tls, char **host, uint16_t *port, char **path) {
    const char *s, *end;

    *host = *path = NULL;
    *tls = strncasecmp(url, "wss://", 6) == 0;
    if (!*tls && strncasecmp(url, "ws://", 5) != 0)
        return false;
    *port = *tls ? 443 : 80;
    s = url + (*tls ? 6 : 5);
    end = s + strcspn(s, "/?#");
    s = split_host(s, end, host);
    if (s && split_port(s, end, port))
        *path = split_path(end);
    if (*path)
        return true;
    free(*host);
    *host = NULL;
    return false;
}
