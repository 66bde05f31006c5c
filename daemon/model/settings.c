/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From top to bottom: the table of keys, the values of each kind, names, and settings as a whole.
 */
#include "daemon/model/settings.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>

#include "daemon/util/url.h"
#include "protocol/alloc.h"

enum {
    NAME_LEN = 64,  /* of a session */
    TEXT_LEN = 199, /* no line that inih reads can hold more */
    SOCKET_LEN = sizeof(((struct sockaddr_un *)0)->sun_path) - 1,
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
static const char *const late_joins[] = {
    [NL_LATE_AUTO] = "auto", [NL_LATE_RESUBSCRIBE] = "resubscribe", [NL_LATE_NONE] = "none", NULL};
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
    COUNT(daemon, max_watches, "100", 1, 1000000, "rooms watched by one client, and its lobbies"),
    COUNT(daemon, max_watches_per_uid, "1000", 0, 100000000,
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
          "connects per second of all configured sessions, and as many of those by token; 0: no limit"),
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
         "the wait after a refused token or a bad certificate, and the most that Retry-After can ask for"),
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
    TIME(session, presence_poll_interval, "10s", 10, HOUR,
         "how often a watched room is asked for, while the session is not present in it"),
    COUNT(session, qos, "1", 0, 2, "the QoS of publishes and subscriptions that name none"),
    CHOICE(session, filters_reported, enum nl_tristate, "auto", tristates,
           "whether the broker tells the filters of each message: yes, no, or auto to find out"),
    CHOICE(session, own_messages, enum nl_own_messages, "never", own_messages,
           "whether a client gets what it published itself: never or echo"),
    CHOICE(session, late_join, enum nl_late_join, "auto", late_joins,
           "retained messages for clients that join a topic later: auto, resubscribe or none"),
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
        nl_buffer_format(b, "%04llo", (unsigned long long)value);
    else
        nl_buffer_format(b, "%llu%s", (unsigned long long)(value / unit->factor), unit->name);
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
        nl_buffer_format(why, "\"%s\" %s", text, number_hint(key));
        return false;
    }
    if (number >= key->min && number <= key->max) {
        *value = number;
        return true;
    }
    nl_buffer_format(why, "\"%s\" is too %s", text,
                     number < key->min ? "small; at least " : "large; at most ");
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
    nl_buffer_format(why, "\"%s\" is neither yes nor no", text);
    return false;
}

/* The index of text in the key's choices, or -1. */
static int find_choice(const struct nl_config_key *key, const char *text, struct nl_buffer *why) {
    for (int i = 0; key->choices[i]; i++) {
        if (strcmp(key->choices[i], text) == 0)
            return i;
    }
    nl_buffer_format(why, "\"%s\" is not one of ", text);
    for (int i = 0; key->choices[i]; i++)
        nl_buffer_format(why, "%s%s", i > 0 ? ", " : "", key->choices[i]);
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
        nl_buffer_format(why, "longer than %llu bytes", (unsigned long long)key->max);
        return false;
    }
    set_text(field, text);
    return true;
}

static bool parse_word(const struct nl_config_key *key, void *field, const char *text,
                       struct nl_buffer *why) {
    return find_choice(key, text, why) >= 0 && parse_text(key, field, text, why);
}

bool nl_config_is_session_name(const char *text) {
    size_t len = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-");

    return len >= 1 && len <= NAME_LEN && text[len] == '\0';
}

static bool parse_name(const struct nl_config_key *key, void *field, const char *text,
                       struct nl_buffer *why) {
    if (nl_config_is_session_name(text))
        return parse_text(key, field, text, why);
    nl_buffer_format(why, "\"%s\" is no session name (1 to 64 letters, digits, \"_\", \".\" and \"-\")",
                     text);
    return false;
}

static bool parse_url(const struct nl_config_key *key, void *field, const char *text, struct nl_buffer *why) {
    char *host, *path;
    uint16_t port;
    bool tls;

    if (!nl_url_parse(text, &tls, &host, &port, &path)) {
        /* without the text: what is refused may be a password before an "@" */
        nl_buffer_format(why, "not a url like wss://HOST[:PORT][/PATH]");
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
        nl_buffer_format(why, "values are written without quotes");
    else if (text[0] == '#' || strstr(text, " #") || strstr(text, "\t#"))
        nl_buffer_format(why, "a comment behind a value begins with \";\", not \"#\"");
    return why->len == 0;
}

bool nl_config_set(const struct nl_config_key *key, void *section, const char *text, struct nl_buffer *why) {
    if (text[0] != '\0')
        return check_shape(text, why) && parsers[key->kind](key, field_of(key, section), text, why);
    if (key->fallback) {
        nl_buffer_format(why, "no value; the default is %s", key->fallback);
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
            !nl_config_set(&keys[i], section, keys[i].fallback, &why))
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

static void copy_texts(const char *name, void *section) {
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (in_section(&keys[i], name) && is_text(&keys[i])) {
            char **field = (char **)field_of(&keys[i], section);

            *field = *field ? nl_strdup(*field) : NULL;
        }
    }
}

struct nl_session_config *nl_session_config_like(const struct nl_session_config *like) {
    struct nl_session_config *session = nl_calloc(1, sizeof(*session));

    if (!like) {
        set_defaults("session", session);
        return session;
    }
    *session = *like;
    session->name = session->token = session->token_file = NULL;
    copy_texts("session", session);
    return session;
}

struct nl_session_config *nl_session_config_free(struct nl_session_config *config) {
    if (config)
        session_deinit(config);
    free(config);
    return NULL;
}

/* ---- names ---- */

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
const struct nl_config_key *nl_config_nearest_key(const char *section, const char *name) {
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

const struct nl_config_key *nl_config_key(const char *section, const char *name) {
    for (size_t i = 0; i < KEY_COUNT; i++) {
        if (in_section(&keys[i], section) && strcmp(keys[i].name, name) == 0)
            return &keys[i];
    }
    return NULL;
}

/* ---- settings as a whole ---- */

struct nl_config *nl_config_new(void) {
    struct nl_config *config = nl_calloc(1, sizeof(*config));

    set_defaults("daemon", &config->daemon);
    return config;
}

struct nl_session_config *nl_config_add_session(struct nl_config *config, const char *name) {
    struct nl_session_config *session;

    config->sessions = nl_realloc(config->sessions, (config->session_count + 1) * sizeof(*config->sessions));
    session = &config->sessions[config->session_count++];
    *session = (struct nl_session_config){.name = nl_strdup(name)};
    set_defaults("session", session);
    return session;
}

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

void nl_config_complete(struct nl_config *config) {
    const struct nl_session_config *session = nl_config_default_session(config);

    if (!config->daemon.client_token_url)
        set_text(&config->daemon.client_token_url, session ? session->url : VENDOR_URL);
}

void nl_config_set_text(char **field, const char *text) {
    set_text(field, text);
}
