/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What can be set, and to what: the settings of the daemon and of each session, and the table of their
 * keys (name, kind, range, default), which drives the parser, the defaults and --check-config. The comments
 * of the structs here and conf/nolagd.conf repeat the defaults for readers; a test holds the latter to the
 * table. Where settings come from is config.h's business.
 */
#ifndef NL_MODEL_SETTINGS_H
#define NL_MODEL_SETTINGS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "protocol/buffer.h"

enum nl_slow_consumer { NL_SLOW_DISCONNECT, NL_SLOW_DROP };
enum nl_own_messages { NL_OWN_NEVER, NL_OWN_ECHO };
/* What is done for clients that join a topic which is subscribed already; see subscriptions.h. */
enum nl_late_join { NL_LATE_AUTO, NL_LATE_RESUBSCRIBE, NL_LATE_NONE };
enum nl_tristate { NL_AUTO, NL_YES, NL_NO };

/* [daemon] */
struct nl_daemon_config {
    char *socket;                           /* path; "/run/nolagd.sock". Ignored under socket activation */
    char *socket_group;                     /* group name or NULL; chown of the socket when we make it */
    uint32_t socket_mode;                   /* octal; 0660 */
    char *log_level;                        /* "error", "warning", "notice", "info", "debug"; "info" */
    char *default_session;                  /* NULL: the session "default", or the only one */
    uint64_t max_clients;                   /* 1000 */
    uint64_t max_clients_per_uid;           /* 0 = as max_clients; so for all *_per_uid */
    uint64_t max_subscriptions;             /* per client; 10000 */
    uint64_t max_subscriptions_per_uid;     /* 0 = no further bound */
    uint64_t max_watches;                   /* rooms watched and lobbies, per client; 100 */
    uint64_t max_watches_per_uid;           /* 1000; 0 = no further bound */
    uint64_t line_limit;                    /* bytes; 2 MiB; 1 KiB to 16 MiB */
    uint64_t depth_limit;                   /* 64; 1 to 64 */
    uint64_t client_output_limit;           /* bytes; 8 MiB; at least 64 KiB */
    uint64_t output_per_uid;                /* bytes of queued output per uid; 0 = no further bound */
    enum nl_slow_consumer slow_consumer;    /* disconnect */
    bool allow_client_tokens;               /* yes */
    uint64_t client_token_sessions_per_uid; /* 16 */
    char *client_token_url; /* url for sessions opened by token; the default session's url, or the vendor's */
    uint64_t connect_rate;  /* connects per second of the configured sessions, and again of those by token; 5;
                               0 = no limit */
    uint64_t drain_timeout_ms; /* 5 s */
};

/* [session NAME] */
struct nl_session_config {
    char *name;
    char *url;        /* ws:// or wss://host[:port][/path]; "wss://broker.nolag.app/ws" */
    char *token_file; /* path as configured; a bare name is looked for in $CREDENTIALS_DIRECTORY first */
    char *token;      /* its content without trailing white space; owned; wiped on free */
    char *ca_file;    /* PEM file that replaces the system's CAs; NULL = system CAs */
    bool reconnect;   /* yes */
    uint64_t reconnect_interval_ms;     /* 1 s; at least 10 ms */
    uint64_t reconnect_max_interval_ms; /* 60 s */
    uint64_t denied_interval_ms;        /* slow retry after access_denied, 4001, a bad certificate; bounds
                                           Retry-After; 300 s */
    uint64_t stable_after_ms;           /* 30 s */
    uint64_t max_reconnect_attempts;    /* UINT64_MAX = "unlimited" (default); 0 = never */
    uint64_t heartbeat_interval_ms;     /* 30 s; 0 = none (warned about) */
    uint64_t heartbeat_timeout_ms;      /* 10 s */
    uint64_t connect_timeout_ms;        /* per address; 5 s */
    uint64_t auth_timeout_ms;           /* 10 s */
    uint64_t request_timeout_ms;        /* control requests; 10 s */
    uint64_t refused_interval_ms;       /* a refused subscription is tried again after; 60 s */
    uint64_t presence_poll_interval_ms; /* of watched rooms in which the session is not present; 10 s */
    uint64_t qos;                       /* default for publish and subscribe; 1 */
    enum nl_tristate filters_reported;  /* auto */
    enum nl_own_messages own_messages;  /* never */
    enum nl_late_join late_join;        /* auto */
    uint64_t publish_rate;              /* per second; 50; 0 = no limit */
    uint64_t outbox_max_messages;       /* 10000 */
    uint64_t outbox_max_bytes;          /* 64 MiB */
    uint64_t ttl_ms;                    /* 60 s */
};

struct nl_config {
    struct nl_daemon_config daemon;
    struct nl_session_config *sessions;
    size_t session_count;
};

/* Settings with the daemon's defaults and no session. */
struct nl_config *nl_config_new(void);
struct nl_config *nl_config_free(struct nl_config *config); /* takes NULL; returns NULL */

/* The session of that name, or NULL. */
const struct nl_session_config *nl_config_session(const struct nl_config *config, const char *name);

/* The session of clients without auth: default_session, else the one named "default", else the only one; or
 * NULL. */
const struct nl_session_config *nl_config_default_session(const struct nl_config *config);

/* A copy of like (NULL: the defaults of [session]) with no name and no token, for sessions opened by token.
 * The caller frees with nl_session_config_free(). */
struct nl_session_config *nl_session_config_like(const struct nl_session_config *like);
struct nl_session_config *nl_session_config_free(struct nl_session_config *config);

/*
 * The table of keys: what the parser and --check-config know about them.
 */
enum nl_config_kind {
    NL_CONFIG_TEXT,   /* char *, as all up to WORD; max is its length */
    NL_CONFIG_NAME,   /* char *; a session's name: 1 to 64 of [a-zA-Z0-9_.-] */
    NL_CONFIG_PATH,   /* char * */
    NL_CONFIG_URL,    /* char *; see nl_url_parse() */
    NL_CONFIG_WORD,   /* char *; one of choices */
    NL_CONFIG_CHOICE, /* an enum; its value is the index in choices */
    NL_CONFIG_BOOL,   /* bool */
    NL_CONFIG_COUNT,  /* uint64_t */
    NL_CONFIG_LIMIT,  /* uint64_t; also "unlimited", UINT64_MAX */
    NL_CONFIG_TIME,   /* uint64_t, ms */
    NL_CONFIG_SIZE,   /* uint64_t, bytes */
    NL_CONFIG_MODE,   /* uint32_t, octal */
};

struct nl_config_key {
    const char *section; /* "daemon" or "session" */
    const char *name;
    enum nl_config_kind kind;
    size_t offset;        /* in struct nl_daemon_config or nl_session_config */
    const char *fallback; /* the default, as one would write it; NULL: unset, which an empty value says too */
    uint64_t min, max;    /* in the unit of the field */
    const char *const *choices; /* ends with NULL */
    const char *help;           /* one line */
};

/* All keys, by section, in the order of their documentation. */
const struct nl_config_key *nl_config_keys(size_t *count);

/* The key of that name in the section, or NULL; the one whose name is most like it, or NULL. */
const struct nl_config_key *nl_config_key(const char *section, const char *name);
const struct nl_config_key *nl_config_nearest_key(const char *section, const char *name);

/*
 * Sets the key in section (a struct nl_daemon_config or nl_session_config) to what text says. An empty text
 * unsets a key without a default. False when text is not a value for it: why then says so.
 */
bool nl_config_set(const struct nl_config_key *key, void *section, const char *text, struct nl_buffer *why);

/* Adds a session with the defaults. */
struct nl_session_config *nl_config_add_session(struct nl_config *config, const char *name);

/* Is text a session's name? */
bool nl_config_is_session_name(const char *text);

/* Replaces a text setting. */
void nl_config_set_text(char **field, const char *text);

/* Fills in what follows from other settings. */
void nl_config_complete(struct nl_config *config);

#endif
