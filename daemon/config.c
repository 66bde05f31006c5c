/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration. From top to bottom: the table of keys, values, findings, tokens, the parser, and
 * the checks that need more than one key.
 *
 * inih splits a line into key and value, and no more than that: it cuts lines and section names that are
 * long, joins an indented line to the key above, goes on after errors without telling their lines, and hides
 * line numbers from its handler. So our reader looks at every line first, keeps the section, and hands inih
 * only lines with a key.
 */
#include "daemon/config.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ini.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "protocol/alloc.h"
#include "protocol/buffer.h"

enum {
    NAME_LEN = 64,  /* of a session */
    TEXT_LEN = 199, /* no line that inih reads can hold more */
    TOKEN_LEN = 4096,
    TOKEN_ROOM = TOKEN_LEN + 64, /* with the white space behind it */
    SOCKET_LEN = sizeof(((struct sockaddr_un *)0)->sun_path) - 1,
    HOST_LEN = 253,
};

#define VENDOR_URL "wss://broker.nolag.app/ws"

/* ---- the table of keys ---- */

#define KIB 1024ULL
#define MIB (1024 * KIB)
#define GIB (1024 * MIB)
#define SECOND 1000ULL
#define MINUTE (60 * SECOND)
#define HOUR (60 * MINUTE)

/* The offset of a field; a pointer comparison that is never evaluated has the compiler check its type. */
#define AT(s, field, type)                                                                                   \
    (offsetof(struct nl_##s##_config, field) + 0 * sizeof((type *)0 == &((struct nl_##s##_config *)0)->field))

static const char *const log_levels[] = {"error", "warning", "notice", "info", "debug", NULL};
static const char *const slow_consumers[] = {
    [NL_SLOW_DISCONNECT] = "disconnect", [NL_SLOW_DROP] = "drop", NULL};
static const char *const tristates[] = {[NL_AUTO] = "auto", [NL_YES] = "yes", [NL_NO] = "no", NULL};
static const char *const own_messages[] = {[NL_OWN_NEVER] = "never", [NL_OWN_ECHO] = "echo", NULL};

#define ROW(s, name, kind, type, field, fallback, min, max, choices, help)                                   \
    { #s, name, NL_CONFIG_##kind, AT(s, field, type), fallback, min, max, choices, help }
#define STRING(s, kind, name, fallback, max, help)                                                           \
    ROW(s, #name, kind, char *, name, fallback, 1, max, NULL, help)
#define BOOL(s, name, fallback, help) ROW(s, #name, BOOL, bool, name, fallback, 0, 1, NULL, help)
#define COUNT(s, name, fallback, min, max, help)                                                             \
    ROW(s, #name, COUNT, uint64_t, name, fallback, min, max, NULL, help)
#define SIZE(s, name, fallback, min, max, help)                                                              \
    ROW(s, #name, SIZE, uint64_t, name, fallback, min, max, NULL, help)
#define TIME(s, name, fallback, min, max, help)                                                              \
    ROW(s, #name, TIME, uint64_t, name##_ms, fallback, min, max, NULL, help)
#define CHOICE(s, name, type, fallback, choices, help)                                                       \
    ROW(s, #name, CHOICE, type, name, fallback, 0, 0, choices, help)

/* clang-format off */
static const struct nl_config_key keys[] = {
    STRING(daemon, PATH, socket, "/run/nolagd.sock", SOCKET_LEN,
           "the socket that clients connect to; not used when systemd passes it"),
    STRING(daemon, TEXT, socket_group, NULL, TEXT_LEN,
           "the group of the socket that nolagd makes; empty: the daemon's own"),
    ROW(daemon, "socket_mode", MODE, uint32_t, socket_mode, "0660", 0, 0777, NULL,
        "the access mode of the socket that nolagd makes, in octal"),
    ROW(daemon, "log_level", WORD, char *, log_level, "info", 1, TEXT_LEN, log_levels,
        "how much is logged: error, warning, notice, info or debug"),
    STRING(daemon, NAME, default_session, NULL, NAME_LEN,
           "the session of clients that send no auth; empty: the one named \"default\", or the only one"),
    COUNT(daemon, max_clients, "1000", 1, 1000000, "clients connected at a time"),
    COUNT(daemon, max_clients_per_uid, "0", 0, 1000000, "the same for each user; 0: no further bound"),
    COUNT(daemon, max_subscriptions, "10000", 1, 1000000, "subscriptions of one client"),
    COUNT(daemon, max_subscriptions_per_uid, "0", 0, 100000000,
          "the same for all clients of one user; 0: no further bound"),
    SIZE(daemon, line_limit, "2MiB", KIB, 16 * MIB, "the longest line a client may send"),
    COUNT(daemon, depth_limit, "64", 1, 64, "how deep arrays and objects in a line may be nested"),
    SIZE(daemon, client_output_limit, "8MiB", 64 * KIB, GIB,
         "what may wait to be read by one client before slow_consumer applies"),
    SIZE(daemon, output_per_uid, "0", 0, 1024 * GIB,
         "the same for all clients of one user; 0: no further bound"),
    CHOICE(daemon, slow_consumer, enum nl_slow_consumer, "disconnect", slow_consumers,
           "a client that reads too slowly: disconnect it, or drop its oldest messages"),
    BOOL(daemon, allow_client_tokens, "yes",
         "whether a client may bring a token, and so a session, of its own"),
    COUNT(daemon, client_token_sessions_per_uid, "16", 0, 1000000,
          "sessions opened in that way for each user; 0: no further bound"),
    STRING(daemon, URL, client_token_url, NULL, TEXT_LEN,
           "the broker of these sessions; empty: that of the default session"),
    COUNT(daemon, connect_rate, "5", 0, 1000,
          "connects to brokers per second, all sessions together; 0: no limit"),
    TIME(daemon, drain_timeout, "5s", 0, 10 * MINUTE,
         "how long a stop waits for messages that are on their way"),

    STRING(session, URL, url, VENDOR_URL, TEXT_LEN,
           "the broker: wss://HOST[:PORT][/PATH], or ws:// without TLS"),
    STRING(session, PATH, token_file, NULL, TEXT_LEN,
           "the file with the actor token: a credential's name or a path; required"),
    STRING(session, PATH, ca_file, NULL, TEXT_LEN,
           "certificates (PEM) to trust instead of the system's; empty: the system's"),
    BOOL(session, reconnect, "yes", "whether to connect again after the connection was lost"),
    TIME(session, reconnect_interval, "1s", 10, HOUR,
         "the longest wait before the first retry; doubled for each further one"),
    TIME(session, reconnect_max_interval, "60s", 10, 24 * HOUR, "the longest wait before any retry"),
    TIME(session, denied_interval, "300s", 10, 24 * HOUR,
         "the wait after the broker refused the token or its certificate is bad"),
    TIME(session, stable_after, "30s", 0, HOUR,
         "how long a connection must live before the waits begin anew"),
    ROW(session, "max_reconnect_attempts", LIMIT, uint64_t, max_reconnect_attempts, "unlimited",
        0, 1000000000, NULL,
        "retries before nolagd gives up; 0: never retry, or \"unlimited\""),
    TIME(session, heartbeat_interval, "30s", 0, HOUR,
         "the silence after which a heartbeat is sent; 0: none (the broker then closes after 60s)"),
    TIME(session, heartbeat_timeout, "10s", 10, HOUR,
         "the wait for any frame after a heartbeat until the connection is given up"),
    TIME(session, connect_timeout, "5s", 10, 10 * MINUTE,
         "for connecting to one address, TLS and upgrade included"),
    TIME(session, auth_timeout, "10s", 10, 10 * MINUTE, "for the broker's answer to the token"),
    TIME(session, request_timeout, "10s", 10, 10 * MINUTE, "for the broker's answer to any other request"),
    TIME(session, refused_interval, "60s", 10, 24 * HOUR,
         "the wait before a subscription that the broker refused is tried again"),
    COUNT(session, qos, "1", 0, 2, "the QoS of publishes and subscriptions that name none"),
    CHOICE(session, filters_reported, enum nl_tristate, "auto", tristates,
           "whether the broker tells the filters of each message: yes, no, or auto to find out"),
    CHOICE(session, own_messages, enum nl_own_messages, "never", own_messages,
           "whether a client gets what it published itself: never or echo"),
    COUNT(session, publish_rate, "50", 0, 1000000, "publishes per second sent to the broker; 0: no limit"),
    COUNT(session, outbox_max_messages, "10000", 1, 100000000, "messages that may wait to be sent"),
    SIZE(session, outbox_max_bytes, "64MiB", 64 * KIB, 64 * GIB,
         "bytes of messages that may wait to be sent"),
    TIME(session, ttl, "60s", 10, 24 * HOUR, "how long a message may wait to be sent"),
};
/* clang-format on */

enum { KEY_COUNT = sizeof(keys) / sizeof(keys[0]) };

const struct nl_config_key *nl_config_keys(size_t *count) {
    *count = KEY_COUNT;
    return keys;
}

static bool in_section(const struct nl_config_key *key, const char *section) {
    return strcmp(key->section, section) == 0;
}

static bool is_text(const struct nl_config_key *key) {
    return key->kind <= NL_CONFIG_WORD;
}

static void *field_of(const struct nl_config_key *key, void *section) {
    return (char *)section + key->offset;
}

/* ---- text that grows ---- */

__attribute__((format(printf, 2, 0))) static void append_formatv(struct nl_buffer *b, const char *format,
                                                                 va_list args) {
    va_list again;
    int len;

    va_copy(again, args);
    len = vsnprintf(NULL, 0, format, again);
    va_end(again);
    if (len < 0)
        return;
    vsnprintf((char *)nl_buffer_reserve(b, (size_t)len + 1), (size_t)len + 1, format, args);
    b->len += (size_t)len;
}

__attribute__((format(printf, 2, 3))) static void append_format(struct nl_buffer *b, const char *format,
                                                                ...) {
    va_list args;

    va_start(args, format);
    append_formatv(b, format, args);
    va_end(args);
}

/* The text, NUL-terminated, for free(); NULL when there is none. */
static char *take_text(struct nl_buffer *b) {
    if (b->len == 0) {
        nl_buffer_deinit(b);
        return NULL;
    }
    nl_buffer_append_byte(b, '\0');
    return (char *)nl_buffer_take(b, &(size_t){0});
}

/* ---- values ---- */

struct unit {
    const char *name;
    uint64_t factor;
};

/* From large to small, for writing; the unit of a number without one has no name. */
static const struct unit time_units[] = {{"h", HOUR}, {"m", MINUTE}, {"s", SECOND},
                                         {"ms", 1},   {"", SECOND},  {NULL, 0}};
static const struct unit size_units[] = {{"GiB", GIB}, {"MiB", MIB}, {"KiB", KIB}, {"", 1}, {NULL, 0}};
static const struct unit no_units[] = {{"", 1}, {NULL, 0}};

static const struct unit *units_of(const struct nl_config_key *key) {
    if (key->kind == NL_CONFIG_TIME)
        return time_units;
    return key->kind == NL_CONFIG_SIZE ? size_units : no_units;
}

/* Digits in that base and the unit behind them. Returns false for anything else; what is too large becomes
 * UINT64_MAX. */
static bool parse_number(const char *text, unsigned base, const struct unit *units, uint64_t *value) {
    const char *s = text;
    bool overflow = false;

    for (*value = 0; *s >= '0' && *s < (char)('0' + base); s++) {
        overflow |= __builtin_mul_overflow(*value, base, value);
        overflow |= __builtin_add_overflow(*value, (uint64_t)(*s - '0'), value);
    }
    while (units->name && strcmp(units->name, s) != 0)
        units++;
    if (s == text || !units->name)
        return false;
    overflow |= __builtin_mul_overflow(*value, units->factor, value);
    if (overflow)
        *value = UINT64_MAX;
    return true;
}

static void append_number(struct nl_buffer *b, const struct nl_config_key *key, uint64_t value) {
    const struct unit *unit = units_of(key);

    while (unit->factor > 1 && (value == 0 || value % unit->factor != 0))
        unit++;
    if (key->kind == NL_CONFIG_MODE)
        append_format(b, "%04llo", (unsigned long long)value);
    else
        append_format(b, "%llu%s", (unsigned long long)(value / unit->factor), unit->name);
}

static const char *number_hint(const struct nl_config_key *key) {
    switch (key->kind) {
    case NL_CONFIG_TIME:
        return "is not a time like 250ms, 10s, 5m or 1h";
    case NL_CONFIG_SIZE:
        return "is not a size like 4096, 64KiB or 2MiB";
    case NL_CONFIG_MODE:
        return "is not an octal mode like 0660";
    case NL_CONFIG_LIMIT:
        return "is neither a number nor \"unlimited\"";
    default:
        return "is not a number";
    }
}

/* Each of these sets the field, or writes into why what is wrong with the value and returns false. */
typedef bool (*parse_value)(const struct nl_config_key *key, void *field, const char *text,
                            struct nl_buffer *why);

static bool parse_range(const struct nl_config_key *key, uint64_t *value, const char *text,
                        struct nl_buffer *why) {
    uint64_t number;

    if (!parse_number(text, key->kind == NL_CONFIG_MODE ? 8 : 10, units_of(key), &number)) {
        append_format(why, "\"%s\" %s", text, number_hint(key));
        return false;
    }
    if (number >= key->min && number <= key->max) {
        *value = number;
        return true;
    }
    append_format(why, "\"%s\" is too %s", text, number < key->min ? "small; at least " : "large; at most ");
    append_number(why, key, number < key->min ? key->min : key->max);
    return false;
}

static bool parse_count(const struct nl_config_key *key, void *field, const char *text,
                        struct nl_buffer *why) {
    return parse_range(key, field, text, why);
}

static bool parse_limit(const struct nl_config_key *key, void *field, const char *text,
                        struct nl_buffer *why) {
    if (strcmp(text, "unlimited") != 0)
        return parse_range(key, field, text, why);
    *(uint64_t *)field = UINT64_MAX;
    return true;
}

static bool parse_mode(const struct nl_config_key *key, void *field, const char *text,
                       struct nl_buffer *why) {
    uint64_t mode;

    if (!parse_range(key, &mode, text, why))
        return false;
    *(uint32_t *)field = (uint32_t)mode;
    return true;
}

static bool parse_bool(const struct nl_config_key *key, void *field, const char *text,
                       struct nl_buffer *why) {
    static const char *const words[] = {"no", "yes", "false", "true", "off", "on", "0", "1"};

    (void)key;
    for (size_t i = 0; i < sizeof(words) / sizeof(words[0]); i++) {
        if (strcasecmp(words[i], text) == 0) {
            *(bool *)field = i % 2;
            return true;
        }
    }
    append_format(why, "\"%s\" is neither yes nor no", text);
    return false;
}

/* The index of text in the key's choices, or -1. */
static int find_choice(const struct nl_config_key *key, const char *text, struct nl_buffer *why) {
    for (int i = 0; key->choices[i]; i++) {
        if (strcmp(key->choices[i], text) == 0)
            return i;
    }
    append_format(why, "\"%s\" is not one of ", text);
    for (int i = 0; key->choices[i]; i++)
        append_format(why, "%s%s", i > 0 ? ", " : "", key->choices[i]);
    return -1;
}

static bool parse_choice(const struct nl_config_key *key, void *field, const char *text,
                         struct nl_buffer *why) {
    int choice = find_choice(key, text, why);

    if (choice < 0)
        return false;
    memcpy(field, &choice, sizeof(choice)); /* every enum of the table is as wide as an int */
    return true;
}

static void set_text(void *field, const char *text) {
    char *copy = text ? nl_strdup(text) : NULL;

    free(*(char **)field);
    *(char **)field = copy;
}

static bool parse_text(const struct nl_config_key *key, void *field, const char *text,
                       struct nl_buffer *why) {
    if (strlen(text) > key->max) {
        append_format(why, "longer than %llu bytes", (unsigned long long)key->max);
        return false;
    }
    set_text(field, text);
    return true;
}

static bool parse_word(const struct nl_config_key *key, void *field, const char *text,
                       struct nl_buffer *why) {
    return find_choice(key, text, why) >= 0 && parse_text(key, field, text, why);
}

static bool is_session_name(const char *text) {
    size_t len = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-");

    return len >= 1 && len <= NAME_LEN && text[len] == '\0';
}

static bool parse_name(const struct nl_config_key *key, void *field, const char *text,
                       struct nl_buffer *why) {
    if (is_session_name(text))
        return parse_text(key, field, text, why);
    append_format(why, "\"%s\" is no session name (1 to 64 letters, digits, \"_\", \".\" and \"-\")", text);
    return false;
}

static bool parse_url(const struct nl_config_key *key, void *field, const char *text, struct nl_buffer *why) {
    char *host, *path;
    uint16_t port;
    bool tls;

    if (!nl_url_parse(text, &tls, &host, &port, &path)) {
        /* without the text: what is refused may be a password before an "@" */
        append_format(why, "not a url like wss://HOST[:PORT][/PATH]");
        return false;
    }
    free(host);
    free(path);
    return parse_text(key, field, text, why);
}

static const parse_value parsers[] = {
    [NL_CONFIG_TEXT] = parse_text,  [NL_CONFIG_NAME] = parse_name,   [NL_CONFIG_PATH] = parse_text,
    [NL_CONFIG_URL] = parse_url,    [NL_CONFIG_WORD] = parse_word,   [NL_CONFIG_CHOICE] = parse_choice,
    [NL_CONFIG_BOOL] = parse_bool,  [NL_CONFIG_COUNT] = parse_count, [NL_CONFIG_LIMIT] = parse_limit,
    [NL_CONFIG_TIME] = parse_count, [NL_CONFIG_SIZE] = parse_count,  [NL_CONFIG_MODE] = parse_mode,
};

_Static_assert(sizeof(enum nl_slow_consumer) == sizeof(int) && sizeof(enum nl_tristate) == sizeof(int) &&
                   sizeof(enum nl_own_messages) == sizeof(int),
               "parse_choice() writes an int");

/* Mistakes that are easy to make with any key, and that would otherwise become a part of the value. */
static bool check_shape(const char *text, struct nl_buffer *why) {
    if (text[0] == '"' || text[0] == '\'')
        append_format(why, "values are written without quotes");
    else if (text[0] == '#' || strstr(text, " #") || strstr(text, "\t#"))
        append_format(why, "a comment behind a value begins with \";\", not \"#\"");
    return why->len == 0;
}

static bool set_value(const struct nl_config_key *key, void *section, const char *text,
                      struct nl_buffer *why) {
    if (text[0] != '\0')
        return check_shape(text, why) && parsers[key->kind](key, field_of(key, section), text, why);
    if (key->fallback) {
        append_format(why, "no value; the default is %s", key->fallback);
        return false;
    }
    set_text(field_of(key, section), NULL);
    return true;
}

/* The defaults go the same way as what is configured. */
static void set_defaults(const char *name, void *section) {
    struct nl_buffer why;

    nl_buffer_init(&why);
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (in_section(&keys[i], name) && keys[i].fallback &&
            !set_value(&keys[i], section, keys[i].fallback, &why))
            abort(); /* the table contradicts itself */
    }
    nl_buffer_deinit(&why);
}

static void free_texts(const char *name, void *section) {
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (in_section(&keys[i], name) && is_text(&keys[i]))
            free(*(char **)field_of(&keys[i], section));
    }
}

static void session_deinit(struct nl_session_config *session) {
    free_texts("session", session);
    free(session->name);
    if (session->token)
        explicit_bzero(session->token, strlen(session->token));
    free(session->token);
}

struct nl_session_config *nl_session_config_new(void) {
    struct nl_session_config *session = nl_calloc(1, sizeof(*session));

    set_defaults("session", session);
    return session;
}

struct nl_session_config *nl_session_config_free(struct nl_session_config *config) {
    if (config)
        session_deinit(config);
    free(config);
    return NULL;
}

/* ---- urls ---- */

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
    append_format(&path, "%s%s", *s == '/' ? "" : "/", s);
    return take_text(&path);
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

/* ---- findings ---- */

/* Where something was said; file is NULL when it was not. */
struct place {
    const char *file;
    unsigned line;
};

/* Where a section and each of its keys were last set. */
struct origin {
    struct place header;
    struct place keys[KEY_COUNT];
};

enum where { NOWHERE, SKIPPED, IN_DAEMON, IN_SESSION };

struct loader {
    const char *path; /* of the main file */
    struct nl_config *config;
    struct origin daemon;
    struct origin *sessions; /* as many as config has */
    struct nl_buffer errors;
    struct nl_buffer warnings;
    char **files; /* their names; places point to them */
    size_t file_count;

    FILE *stream;
    struct place here;
    char *line; /* getline()'s */
    size_t line_cap;
    enum where where; /* the section that the lines read now belong to */
    size_t session;   /* when IN_SESSION */
    bool unclaimed;   /* inih was handed a line, and has not called on_key() for it */
};

__attribute__((format(printf, 3, 0))) static void findv(struct nl_buffer *to, struct place place,
                                                        const char *format, va_list args) {
    if (place.line > 0)
        append_format(to, "%s:%u: ", place.file, place.line);
    else
        append_format(to, "%s: ", place.file);
    append_formatv(to, format, args);
    nl_buffer_append_byte(to, '\n');
}

__attribute__((format(printf, 3, 4))) static void fail(struct loader *l, struct place place,
                                                       const char *format, ...) {
    va_list args;

    va_start(args, format);
    findv(&l->errors, place, format, args);
    va_end(args);
}

__attribute__((format(printf, 3, 4))) static void warn(struct loader *l, struct place place,
                                                       const char *format, ...) {
    va_list args;

    va_start(args, format);
    findv(&l->warnings, place, format, args);
    va_end(args);
}

/* ---- the nearest name ---- */

static size_t least(size_t a, size_t b, size_t c) {
    size_t d = a < b ? a : b;

    return d < c ? d : c;
}

/* How many letters must be put in, taken out or changed to make b of a, whatever their case. b is a key's
 * name. */
static size_t edit_distance(const char *a, const char *b) {
    size_t row[NAME_LEN + 1], len = strlen(b);

    for (size_t j = 0; j <= len; j++)
        row[j] = j;
    for (size_t i = 1; a[i - 1]; i++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (size_t j = 1; j <= len; j++) {
            bool same = tolower((unsigned char)a[i - 1]) == tolower((unsigned char)b[j - 1]);
            size_t here = least(diagonal + !same, row[j] + 1, row[j - 1] + 1);

            diagonal = row[j];
            row[j] = here;
        }
    }
    return row[len];
}

/* The key of the section whose name is like the given one, or NULL. One that it begins counts as like it. */
static const struct nl_config_key *nearest_key(const char *section, const char *name) {
    const struct nl_config_key *nearest = NULL;
    size_t len = strlen(name), best = len > 3 ? len / 3 : 1;

    for (size_t i = 0; i < KEY_COUNT; i++) {
        size_t distance = edit_distance(name, keys[i].name);

        if (len > 2 && distance > 1 && strncasecmp(name, keys[i].name, len) == 0)
            distance = 1;
        if (in_section(&keys[i], section) && distance <= best && (!nearest || distance < best)) {
            best = distance;
            nearest = &keys[i];
        }
    }
    return nearest;
}

/* ---- one key ---- */

static const struct nl_config_key *find_key(const char *section, const char *name) {
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (in_section(&keys[i], section) && strcmp(keys[i].name, name) == 0)
            return &keys[i];
    }
    return NULL;
}

/* "[daemon]" or "[session NAME]", for messages. */
static void append_section(struct nl_buffer *b, const struct loader *l) {
    if (l->where == IN_SESSION)
        append_format(b, "[session %s]", l->config->sessions[l->session].name);
    else
        append_format(b, "[daemon]");
}

/* Only the name is told: a value may be a token that came into the wrong place. */
static void fail_unknown_key(struct loader *l, const char *section, const char *name) {
    const char *other = l->where == IN_SESSION ? "daemon" : "session";
    const struct nl_config_key *nearest = nearest_key(section, name);
    struct nl_buffer text;
    char *message;

    nl_buffer_init(&text);
    append_format(&text, "unknown key \"%s\" in ", name);
    append_section(&text, l);
    if (find_key(other, name))
        append_format(&text, "; it belongs in [%s]", l->where == IN_SESSION ? "daemon" : "session NAME");
    else if (nearest)
        append_format(&text, "; did you mean \"%s\"?", nearest->name);
    message = take_text(&text);
    fail(l, l->here, "%s", message);
    free(message);
}

/* The key was set in this file before: within one file that is a mistake, while a drop-in is there to
 * override. */
static bool claim_place(struct loader *l, struct place *place, const char *name) {
    if (place->file == l->here.file) {
        fail(l, l->here, "%s is set twice, first in line %u", name, place->line);
        return false;
    }
    *place = l->here;
    return true;
}

static void set_key(struct loader *l, const char *name, const char *value) {
    bool in_session = l->where == IN_SESSION;
    const char *section = in_session ? "session" : "daemon";
    const struct nl_config_key *key = find_key(section, name);
    struct origin *origin = in_session ? &l->sessions[l->session] : &l->daemon;
    void *base = in_session ? (void *)&l->config->sessions[l->session] : (void *)&l->config->daemon;
    struct nl_buffer why;

    if (!key) {
        fail_unknown_key(l, section, name);
        return;
    }
    if (!claim_place(l, &origin->keys[key - keys], name))
        return;
    nl_buffer_init(&why);
    if (!set_value(key, base, value, &why))
        fail(l, l->here, "%s: %.*s", name, (int)why.len, (char *)why.bytes);
    nl_buffer_deinit(&why);
}

/* inih's handler. Its own idea of the section is cut after 49 bytes: ours counts. */
static int on_key(void *user, const char *section, const char *name, const char *value) {
    struct loader *l = user;

    (void)section;
    l->unclaimed = false;
    if (l->where == NOWHERE)
        fail(l, l->here, "%s stands before the first section", name);
    else if (l->where != SKIPPED)
        set_key(l, name, value);
    return 1;
}

/* ---- sections ---- */

static void enter_session(struct loader *l, const char *name) {
    struct nl_config *c = l->config;

    l->where = IN_SESSION;
    for (l->session = 0; l->session < c->session_count; l->session++) {
        if (strcmp(c->sessions[l->session].name, name) == 0)
            return;
    }
    c->session_count++;
    c->sessions = nl_realloc(c->sessions, c->session_count * sizeof(*c->sessions));
    l->sessions = nl_realloc(l->sessions, c->session_count * sizeof(*l->sessions));
    c->sessions[l->session] = (struct nl_session_config){.name = nl_strdup(name)};
    l->sessions[l->session] = (struct origin){.header = l->here};
    set_defaults("session", &c->sessions[l->session]);
}

/* What is between the brackets: a kind, and a name for the kinds that have one. */
static void enter_section(struct loader *l, char *text) {
    char *rest = NULL, *kind = strtok_r(text, " \t", &rest), *name = strtok_r(NULL, " \t", &rest);
    bool more = strtok_r(NULL, " \t", &rest) != NULL;

    if (kind && strcmp(kind, "daemon") == 0 && !name)
        l->where = IN_DAEMON;
    else if (kind && strcmp(kind, "daemon") == 0)
        fail(l, l->here, "[daemon] has no name");
    else if (!kind || strcmp(kind, "session") != 0)
        fail(l, l->here, "unknown section [%s]; there are [daemon] and [session NAME]", kind ? kind : "");
    else if (!name)
        fail(l, l->here, "a session needs a name: [session NAME]");
    else if (more || !is_session_name(name))
        fail(l, l->here, "a session's name is 1 to 64 letters, digits, \"_\", \".\" and \"-\"");
    else
        enter_session(l, name);
}

static void read_section(struct loader *l, char *line) {
    char *end = strchr(line, ']');
    size_t blanks = end ? strspn(end + 1, " \t") : 0;

    l->where = SKIPPED; /* until it is known: one finding for a bad section, none for its keys */
    if (!end || (end[1 + blanks] != '\0' && end[1 + blanks] != ';' && end[1 + blanks] != '#')) {
        fail(l, l->here, "a section is written as [daemon] or [session NAME]");
        return;
    }
    *end = '\0';
    enter_section(l, line + 1);
}

/* ---- lines and files ---- */

static void settle_last_line(struct loader *l) {
    if (l->unclaimed)
        fail(l, l->here, "neither a section nor KEY = VALUE");
    l->unclaimed = false;
}

/* Reads a line without its end, CRLF too. Returns its length, or -1 at the end of the file. */
static ssize_t next_line(struct loader *l) {
    ssize_t len = getline(&l->line, &l->line_cap, l->stream);

    if (len < 0)
        return -1;
    l->here.line++;
    if (len > 0 && l->line[len - 1] == '\n')
        len--;
    if (len > 0 && l->line[len - 1] == '\r')
        len--;
    l->line[len] = '\0';
    if (l->here.line == 1 && strncmp(l->line, "\xef\xbb\xbf", 3) == 0) {
        len -= 3;
        memmove(l->line, l->line + 3, (size_t)len + 1);
    }
    return len;
}

static bool has_control_character(const char *line, size_t len) {
    for (size_t i = 0; i < len; i++) {
        if (((unsigned char)line[i] < 0x20 && line[i] != '\t') || line[i] == 0x7f)
            return true;
    }
    return false;
}

/* Deals with all lines but those with a key; returns whether this is one, for inih. */
static bool screen_line(struct loader *l, size_t len, size_t limit) {
    size_t indent = strspn(l->line, " \t");
    char first = l->line[indent];

    if (indent == len || first == '#' || first == ';')
        return false;
    if (first == '[' && (len > limit || has_control_character(l->line, len)))
        l->where = SKIPPED;
    if (len > limit)
        fail(l, l->here, "the line is %zu bytes long; the most is %zu", len, limit);
    else if (has_control_character(l->line, len))
        fail(l, l->here, "the line has a control character in it");
    else if (indent > 0)
        fail(l, l->here, "the line begins with a blank; values end with their line");
    else if (first == '[')
        read_section(l, l->line);
    else
        return true;
    return false;
}

/* inih's reader, like fgets(): size is the room in out. */
static char *read_line(char *out, int size, void *user) {
    struct loader *l = user;
    size_t limit = (size_t)size - 1;
    ssize_t len;

    settle_last_line(l);
    len = next_line(l);
    if (len < 0)
        return NULL;
    l->unclaimed = screen_line(l, (size_t)len, limit);
    memcpy(out, l->unclaimed ? l->line : "", l->unclaimed ? (size_t)len + 1 : 1);
    return out;
}

static const char *keep_name(struct loader *l, const char *name) {
    l->files = nl_realloc(l->files, (l->file_count + 1) * sizeof(*l->files));
    l->files[l->file_count] = nl_strdup(name);
    return l->files[l->file_count++];
}

static void load_file(struct loader *l, const char *name) {
    size_t errors = l->errors.len;
    int line;

    l->here = (struct place){.file = keep_name(l, name)};
    l->where = NOWHERE;
    l->stream = fopen(name, "re");
    if (!l->stream) {
        fail(l, l->here, "cannot read it: %s", strerror(errno));
        return;
    }
    line = ini_parse_stream(read_line, l, on_key, l);
    if (ferror(l->stream))
        fail(l, (struct place){.file = l->here.file}, "cannot read it: %s", strerror(errno));
    else if (line != 0 && errors == l->errors.len)
        fail(l, (struct place){l->here.file, line > 0 ? (unsigned)line : 0}, "cannot be read");
    fclose(l->stream);
}

/* For free(). */
static char *folder_of(const char *path) {
    const char *slash = strrchr(path, '/');

    if (!slash)
        return nl_strdup(".");
    return nl_strndup(path, slash > path ? (size_t)(slash - path) : 1);
}

static char *join_path(const char *folder, const char *name) {
    struct nl_buffer b;

    nl_buffer_init(&b);
    append_format(&b, "%s/%s", folder, name);
    return take_text(&b);
}

/* Neither hidden files nor what editors and package managers leave behind ("x.conf~", "x.conf.dpkg-old"). */
static int is_drop_in(const struct dirent *entry) {
    size_t len = strlen(entry->d_name);

    return entry->d_name[0] != '.' && len > 5 && strcmp(entry->d_name + len - 5, ".conf") == 0;
}

/* By bytes: the order must not depend on the language of whoever starts the daemon. */
static int by_name(const struct dirent **a, const struct dirent **b) {
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void load_drop_ins(struct loader *l) {
    char *parent = folder_of(l->path), *folder = join_path(parent, "conf.d"), *name;
    struct dirent **entries = NULL;
    int count = scandir(folder, &entries, is_drop_in, by_name);

    if (count < 0 && errno != ENOENT)
        fail(l, (struct place){.file = folder}, "cannot read it: %s", strerror(errno));
    for (int i = 0; i < count; i++) {
        name = join_path(folder, entries[i]->d_name);
        load_file(l, name);
        free(name);
        free(entries[i]);
    }
    free(entries);
    free(folder);
    free(parent);
}

/* ---- tokens ---- */

/* Where a token_file without a folder is looked for: systemd's credentials, or beside the configuration. */
static char *token_folder(const struct loader *l, bool *credential) {
    const char *folder = getenv("CREDENTIALS_DIRECTORY");

    *credential = folder != NULL;
    return folder ? nl_strdup(folder) : folder_of(l->path);
}

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
static const char *load_token(const char *path, char **token) {
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    const char *why;

    if (fd < 0)
        return open_failure(errno);
    why = read_token(fd, token);
    close(fd);
    return why;
}

static const struct nl_config_key *session_key(const char *name) {
    return find_key("session", name);
}

/* Where the key was set, or else where the session begins. */
static struct place place_of(const struct origin *origin, const struct nl_config_key *key) {
    const struct place *place = &origin->keys[key - keys];

    return place->file ? *place : origin->header;
}

static const char credential_advice[] =
    "put the actor token into the file that LoadCredential= of nolagd.service names for it "
    "(for \"token-default\" as shipped: /etc/nolagd/tokens/default), and start nolagd again";

/* A bare name is not put into messages: a token that was pasted in the place of a file name would be seen
 * there. */
static void read_bare_token(struct loader *l, struct nl_session_config *s, struct place place) {
    bool credential;
    char *folder = token_folder(l, &credential), *path = join_path(folder, s->token_file);
    const char *why = load_token(path, &s->token);

    if (why && credential)
        fail(l, place, "token_file: the credential of that name in %s %s; %s", folder, why,
             credential_advice);
    else if (why)
        fail(l, place, "token_file: the file of that name in %s %s", folder, why);
    free(path);
    free(folder);
}

static void read_session_token(struct loader *l, size_t i) {
    struct nl_session_config *s = &l->config->sessions[i];
    struct place place = place_of(&l->sessions[i], session_key("token_file"));
    const char *why;

    if (!s->token_file) {
        fail(l, place, "[session %s] has no token_file", s->name);
    } else if (!strchr(s->token_file, '/')) {
        read_bare_token(l, s, place);
    } else {
        why = load_token(s->token_file, &s->token);
        if (why)
            fail(l, place, "token_file: %s %s", s->token_file, why);
    }
}

/* ---- checks over several keys ---- */

/* Whether two valid urls lead to the same place. */
static bool same_url(const char *a, const char *b) {
    char *host[2], *path[2];
    uint16_t port[2];
    bool tls[2], same;

    if (!nl_url_parse(a, &tls[0], &host[0], &port[0], &path[0]))
        return false;
    same = nl_url_parse(b, &tls[1], &host[1], &port[1], &path[1]) && tls[0] == tls[1] && port[0] == port[1] &&
           strcasecmp(host[0], host[1]) == 0 && strcmp(path[0], path[1]) == 0;
    for (int i = 0; i < 2; i++) {
        free(host[i]);
        free(path[i]);
    }
    return same;
}

static void check_unique(struct loader *l, size_t i) {
    const struct nl_session_config *s = l->config->sessions;

    for (size_t j = 0; j < i && s[i].token; j++) {
        if (s[j].token && strcmp(s[i].token, s[j].token) == 0 && same_url(s[i].url, s[j].url))
            fail(l, place_of(&l->sessions[i], session_key("token_file")),
                 "[session %s] has the token and the url of [session %s]: they would be one session",
                 s[i].name, s[j].name);
    }
}

static bool is_loopback(const char *host) {
    struct in_addr v4;

    if (inet_pton(AF_INET, host, &v4) == 1)
        return ntohl(v4.s_addr) >> 24 == 127;
    return strcasecmp(host, "localhost") == 0 || strcmp(host, "::1") == 0;
}

static void check_url(struct loader *l, struct place place, const char *key, const char *url) {
    char *host, *path;
    uint16_t port;
    bool tls;

    if (!nl_url_parse(url, &tls, &host, &port, &path))
        return; /* unset; a bad one was found before */
    if (!tls && !is_loopback(host))
        warn(l, place, "%s: ws:// sends the token to %s for everyone on the way to read; wss:// does not",
             key, host);
    free(host);
    free(path);
}

static void check_ca_file(struct loader *l, size_t i) {
    const char *path = l->config->sessions[i].ca_file;

    if (path && access(path, R_OK) < 0)
        fail(l, place_of(&l->sessions[i], session_key("ca_file")), "ca_file: cannot read %s: %s", path,
             strerror(errno));
}

static void check_times(struct loader *l, size_t i) {
    const struct nl_session_config *s = &l->config->sessions[i];
    const struct origin *o = &l->sessions[i];

    if (s->reconnect_interval_ms > s->reconnect_max_interval_ms) {
        const char *set = o->keys[session_key("reconnect_interval") - keys].file ? "reconnect_interval"
                                                                                 : "reconnect_max_interval";

        fail(l, place_of(o, session_key(set)), "reconnect_interval is above reconnect_max_interval");
    }
    if (s->heartbeat_interval_ms == 0)
        warn(l, place_of(o, session_key("heartbeat_interval")),
             "heartbeat_interval: without heartbeats the broker closes a connection after 60s of silence");
    else if (s->heartbeat_interval_ms >= MINUTE)
        warn(l, place_of(o, session_key("heartbeat_interval")),
             "heartbeat_interval: the broker closes a connection after 60s of silence; less is needed");
}

static void check_session(struct loader *l, size_t i) {
    read_session_token(l, i);
    check_unique(l, i);
    check_url(l, place_of(&l->sessions[i], session_key("url")), "url", l->config->sessions[i].url);
    check_ca_file(l, i);
    check_times(l, i);
}

static void check_daemon(struct loader *l) {
    const struct nl_daemon_config *d = &l->config->daemon;
    const struct nl_config_key *session = find_key("daemon", "default_session");
    const struct nl_config_key *url = find_key("daemon", "client_token_url");
    const struct nl_config_key *allow = find_key("daemon", "allow_client_tokens");

    if (d->default_session && !nl_config_session(l->config, d->default_session))
        fail(l, place_of(&l->daemon, session), "default_session: there is no [session %s]",
             d->default_session);
    if (d->client_token_url)
        check_url(l, place_of(&l->daemon, url), "client_token_url", d->client_token_url);
    if (!d->allow_client_tokens && l->config->session_count == 0)
        warn(l, place_of(&l->daemon, allow),
             "no session, and allow_client_tokens is no: no client can do anything");
}

/* ---- the whole ---- */

const struct nl_session_config *nl_config_session(const struct nl_config *config, const char *name) {
    for (size_t i = 0; i < config->session_count; i++) {
        if (strcmp(config->sessions[i].name, name) == 0)
            return &config->sessions[i];
    }
    return NULL;
}

const struct nl_session_config *nl_config_default_session(const struct nl_config *config) {
    const char *name = config->daemon.default_session;
    const struct nl_session_config *session = nl_config_session(config, name ? name : "default");

    if (session || name)
        return session;
    return config->session_count == 1 ? config->sessions : NULL;
}

struct nl_config *nl_config_free(struct nl_config *config) {
    if (!config)
        return NULL;
    free_texts("daemon", &config->daemon);
    for (size_t i = 0; i < config->session_count; i++)
        session_deinit(&config->sessions[i]);
    free(config->sessions);
    free(config);
    return NULL;
}

static void fill_in(struct nl_config *config) {
    const struct nl_session_config *session = nl_config_default_session(config);

    if (!config->daemon.client_token_url)
        set_text(&config->daemon.client_token_url, session ? session->url : VENDOR_URL);
}

static void loader_deinit(struct loader *l) {
    for (size_t i = 0; i < l->file_count; i++)
        free(l->files[i]);
    free(l->files);
    free(l->sessions);
    free(l->line);
}

struct nl_config *nl_config_load(const char *path, struct nl_config_report *report) {
    struct loader l = {.path = path, .config = nl_calloc(1, sizeof(*l.config))};
    struct nl_config *config = l.config;

    nl_buffer_init(&l.errors);
    nl_buffer_init(&l.warnings);
    set_defaults("daemon", &config->daemon);
    load_file(&l, path);
    load_drop_ins(&l);
    check_daemon(&l);
    for (size_t i = 0; i < config->session_count; i++)
        check_session(&l, i);
    fill_in(config);
    report->errors = take_text(&l.errors);
    report->warnings = take_text(&l.warnings);
    loader_deinit(&l);
    return report->errors ? nl_config_free(config) : config;
}
