/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The configuration: each key at and beyond its bounds, each finding with its exact text, files in
 * every shape, tokens in every state. Each test runs in an empty folder of its own.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "daemon/config.h"
#include "daemon/util/url.h"

/* A session that needs nothing more; keys that follow it begin in line 3. */
#define SESSION "[session x]\ntoken_file = ./token\n"
#define VENDOR "wss://broker.nolag.app/ws"
#define NO_SESSION "there is no [session NAME]: only clients with tokens of their own can do anything\n"
#define LONG_KEY "client_token_url = wss://h/" /* takes a value of any length */
#define LENGTH(array) (sizeof(array) / sizeof((array)[0]))

static char folder[32], home[PATH_MAX];
static struct nl_config *config;
static struct nl_config_report report;

static void put_bytes(const char *name, const char *bytes, size_t len, mode_t mode) {
    int fd = open(name, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

    assert_true(fd >= 0);
    assert_int_equal(write(fd, bytes, len), (ssize_t)len);
    assert_int_equal(fchmod(fd, mode), 0);
    close(fd);
}

static void put(const char *name, const char *text) {
    put_bytes(name, text, strlen(text), 0600);
}

static int setup(void **state) {
    (void)state;
    unsetenv("CREDENTIALS_DIRECTORY");
    strcpy(folder, "/tmp/nl-config-XXXXXX");
    if (!getcwd(home, sizeof(home)) || !mkdtemp(folder) || chdir(folder) < 0)
        return -1;
    put("token", "at_token\n");
    return 0;
}

static void clear(void) {
    config = nl_config_free(config);
    free(report.errors);
    free(report.warnings);
    report = (struct nl_config_report){NULL, NULL};
}

static int teardown(void **state) {
    char command[64];

    (void)state;
    clear();
    snprintf(command, sizeof(command), "rm -rf %s", folder);
    return chdir(home) < 0 || system(command) != 0;
}

static void load(const char *path) {
    clear();
    config = nl_config_load(path, &report);
    assert_int_equal(config == NULL, report.errors != NULL);
}

static void load_bytes(const char *bytes, size_t len) {
    put_bytes("n.conf", bytes, len, 0600);
    load("n.conf");
}

static void load_text(const char *text) {
    load_bytes(text, strlen(text));
}

static void expect_text(const char *actual, const char *expected) {
    assert_string_equal(actual ? actual : "", expected);
}

/* The text loads, without a word other than that there is no session when it has none. */
static void expect_fine(const char *text) {
    load_text(text);
    expect_text(report.errors, "");
    expect_text(report.warnings, config->session_count == 0 ? "n.conf: " NO_SESSION : "");
}

static void expect_errors(const char *text, const char *errors) {
    load_text(text);
    expect_text(report.errors, errors);
}

static void expect_warnings(const char *text, const char *warnings) {
    load_text(text);
    expect_text(report.errors, "");
    expect_text(report.warnings, warnings);
}

/* ---- keys ---- */

static const struct nl_config_key *key_at(size_t i) {
    size_t count;
    const struct nl_config_key *keys = nl_config_keys(&count);

    return i < count ? &keys[i] : NULL;
}

static const struct nl_config_key *find(const char *name) {
    const struct nl_config_key *key;

    for (size_t i = 0; (key = key_at(i)); i++) {
        if (strcmp(key->name, name) == 0)
            return key;
    }
    fail_msg("no key %s", name);
    return NULL;
}

static const void *field(const struct nl_config_key *key) {
    if (strcmp(key->section, "daemon") == 0)
        return (const char *)&config->daemon + key->offset;
    return (const char *)&config->sessions[0] + key->offset;
}

static uint64_t number(const struct nl_config_key *key) {
    return key->kind == NL_CONFIG_MODE ? *(const uint32_t *)field(key) : *(const uint64_t *)field(key);
}

static const char *text_of(const struct nl_config_key *key) {
    return *(char *const *)field(key);
}

/* Loads a file whose third line is KEY = VALUE in the right section. */
static void load_key(const struct nl_config_key *key, const char *value) {
    char text[4096];

    if (strcmp(key->section, "daemon") == 0)
        snprintf(text, sizeof(text), "# line 1\n[daemon]\n%s = %s\n" SESSION, key->name, value);
    else
        snprintf(text, sizeof(text), SESSION "%s = %s\n", key->name, value);
    load_text(text);
}

static void expect_key_error(const struct nl_config_key *key, const char *value, const char *reason) {
    char expected[4096];

    load_key(key, value);
    snprintf(expected, sizeof(expected), "n.conf:3: %s: %s\n", key->name, reason);
    expect_text(report.errors, expected);
}

static bool is_number(const struct nl_config_key *key) {
    return key->kind >= NL_CONFIG_COUNT && key->kind <= NL_CONFIG_MODE;
}

static void test_table(void **state) {
    const struct nl_config_key *key;
    bool sessions = false;

    (void)state;
    for (size_t i = 0; (key = key_at(i)); i++) {
        sessions |= strcmp(key->section, "session") == 0;
        assert_string_equal(key->section, sessions ? "session" : "daemon");
        assert_ptr_equal(find(key->name), key); /* no name twice */
        assert_true(strlen(key->help) > 10 && !strpbrk(key->help, "\n"));
    }
    assert_true(sessions);
}

static void test_daemon_defaults(void **state) {
    const struct nl_daemon_config *d;

    (void)state;
    expect_fine("");
    d = &config->daemon;
    assert_int_equal(config->session_count, 0);
    assert_string_equal(d->socket, "/run/nolagd.sock");
    assert_null(d->socket_group);
    assert_int_equal(d->socket_mode, 0660);
    assert_string_equal(d->log_level, "info");
    assert_null(d->default_session);
    assert_int_equal(d->max_clients, 1000);
    assert_int_equal(d->max_clients_per_uid, 0);
    assert_int_equal(d->max_subscriptions, 10000);
    assert_int_equal(d->max_subscriptions_per_uid, 0);
    assert_int_equal(d->max_watches, 100);
    assert_int_equal(d->max_watches_per_uid, 1000);
    assert_int_equal(d->line_limit, 2 << 20);
    assert_int_equal(d->depth_limit, 64);
    assert_int_equal(d->client_output_limit, 8 << 20);
    assert_int_equal(d->output_per_uid, 0);
    assert_int_equal(d->slow_consumer, NL_SLOW_DISCONNECT);
    assert_true(d->allow_client_tokens);
    assert_int_equal(d->client_token_sessions_per_uid, 16);
    assert_string_equal(d->client_token_url, VENDOR);
    assert_int_equal(d->connect_rate, 5);
    assert_int_equal(d->drain_timeout_ms, 5000);
}

static void expect_session_defaults(const struct nl_session_config *s) {
    assert_string_equal(s->url, VENDOR);
    assert_null(s->ca_file);
    assert_true(s->reconnect);
    assert_int_equal(s->reconnect_interval_ms, 1000);
    assert_int_equal(s->reconnect_max_interval_ms, 60000);
    assert_int_equal(s->denied_interval_ms, 300000);
    assert_int_equal(s->stable_after_ms, 30000);
    assert_true(s->max_reconnect_attempts == UINT64_MAX);
    assert_int_equal(s->heartbeat_interval_ms, 30000);
    assert_int_equal(s->heartbeat_timeout_ms, 10000);
    assert_int_equal(s->connect_timeout_ms, 5000);
    assert_int_equal(s->auth_timeout_ms, 10000);
    assert_int_equal(s->request_timeout_ms, 10000);
    assert_int_equal(s->refused_interval_ms, 60000);
    assert_int_equal(s->presence_poll_interval_ms, 10000);
    assert_int_equal(s->qos, 1);
    assert_int_equal(s->filters_reported, NL_AUTO);
    assert_int_equal(s->own_messages, NL_OWN_NEVER);
    assert_int_equal(s->late_join, NL_LATE_AUTO);
    assert_int_equal(s->publish_rate, 50);
    assert_int_equal(s->outbox_max_messages, 10000);
    assert_int_equal(s->outbox_max_bytes, 64 << 20);
    assert_int_equal(s->ttl_ms, 60000);
}

static void test_session_defaults(void **state) {
    struct nl_session_config *s = nl_session_config_like(NULL);

    (void)state;
    expect_session_defaults(s);
    assert_null(s->name);
    assert_null(s->token);
    assert_null(s->token_file);
    assert_null(nl_session_config_free(s));
    assert_null(nl_session_config_free(NULL));
    assert_null(nl_config_free(NULL));
    expect_fine(SESSION);
    assert_int_equal(config->session_count, 1);
    expect_session_defaults(config->sessions);
    assert_string_equal(config->sessions[0].name, "x");
    assert_string_equal(config->sessions[0].token, "at_token");
    assert_string_equal(config->sessions[0].token_file, "./token");
}

/* For a session by token: all but what makes it that one session. */
static void test_session_like_another(void **state) {
    struct nl_session_config *like;

    (void)state;
    put("ca.pem", "x");
    expect_fine(
        SESSION
        "url = wss://h/\nca_file = ./ca.pem\nqos = 2\nttl = 7s\nreconnect = no\nown_messages = echo\n");
    like = nl_session_config_like(&config->sessions[0]);
    assert_null(like->name);
    assert_null(like->token);
    assert_null(like->token_file);
    clear();
    assert_string_equal(like->url, "wss://h/");
    assert_string_equal(like->ca_file, "./ca.pem");
    assert_int_equal(like->qos, 2);
    assert_int_equal(like->ttl_ms, 7000);
    assert_false(like->reconnect);
    assert_int_equal(like->own_messages, NL_OWN_ECHO);
    assert_int_equal(like->publish_rate, 50);
    assert_null(nl_session_config_free(like));
}

/* Writing a default down changes nothing. */
static void test_written_defaults(void **state) {
    const struct nl_config_key *key;

    (void)state;
    for (size_t i = 0; (key = key_at(i)); i++) {
        if (strcmp(key->name, "token_file") == 0)
            continue;
        load_key(key, key->fallback ? key->fallback : "");
        expect_text(report.errors, "");
        expect_text(report.warnings, "");
        expect_session_defaults(config->sessions);
        assert_int_equal(config->daemon.max_clients, 1000);
        assert_string_equal(config->daemon.client_token_url, VENDOR);
    }
}

/* What the documentation promises: least and most of every key that is a number, and what is beyond. */
static const struct bounds {
    const char *name, *least, *most;
    uint64_t least_value, most_value;
    const char *below, *above; /* below NULL: nothing is */
} bounds[] = {
    {"socket_mode", "0000", "0777", 0, 0777, NULL, "1000"},
    {"max_clients", "1", "1000000", 1, 1000000, "0", "1000001"},
    {"max_clients_per_uid", "0", "1000000", 0, 1000000, NULL, "1000001"},
    {"max_subscriptions", "1", "1000000", 1, 1000000, "0", "1000001"},
    {"max_watches", "1", "1000000", 1, 1000000, "0", "1000001"},
    {"max_watches_per_uid", "0", "100000000", 0, 100000000, NULL, "100000001"},
    {"max_subscriptions_per_uid", "0", "100000000", 0, 100000000, NULL, "100000001"},
    {"line_limit", "1KiB", "16MiB", 1024, 16777216, "1023", "16777217"},
    {"depth_limit", "1", "64", 1, 64, "0", "65"},
    {"client_output_limit", "64KiB", "1GiB", 65536, 1073741824, "63KiB", "1025MiB"},
    {"output_per_uid", "0", "1024GiB", 0, 1099511627776, NULL, "1025GiB"},
    {"client_token_sessions_per_uid", "0", "1000000", 0, 1000000, NULL, "1000001"},
    {"connect_rate", "0", "1000", 0, 1000, NULL, "1001"},
    {"drain_timeout", "0ms", "10m", 0, 600000, NULL, "601"},
    {"reconnect_interval", "10ms", "1h", 10, 3600000, "9ms", "3601"},
    {"reconnect_max_interval", "10ms", "24h", 10, 86400000, "0", "25h"},
    {"denied_interval", "10ms", "24h", 10, 86400000, "9ms", "86400001ms"},
    {"stable_after", "0ms", "1h", 0, 3600000, NULL, "61m"},
    {"max_reconnect_attempts", "0", "1000000000", 0, 1000000000, NULL, "1000000001"},
    {"heartbeat_interval", "0ms", "1h", 0, 3600000, NULL, "3600001ms"},
    {"heartbeat_timeout", "10ms", "1h", 10, 3600000, "9ms", "2h"},
    {"connect_timeout", "10ms", "10m", 10, 600000, "9ms", "11m"},
    {"auth_timeout", "10ms", "10m", 10, 600000, "9ms", "11m"},
    {"request_timeout", "10ms", "10m", 10, 600000, "9ms", "11m"},
    {"refused_interval", "10ms", "24h", 10, 86400000, "9ms", "25h"},
    {"presence_poll_interval", "10ms", "1h", 10, 3600000, "9ms", "61m"},
    {"qos", "0", "2", 0, 2, NULL, "3"},
    {"publish_rate", "0", "1000000", 0, 1000000, NULL, "1000001"},
    {"outbox_max_messages", "1", "100000000", 1, 100000000, "0", "100000001"},
    {"outbox_max_bytes", "64KiB", "64GiB", 65536, 68719476736, "65535", "65GiB"},
    {"ttl", "10ms", "24h", 10, 86400000, "9ms", "86401"},
};

static void expect_number(const struct nl_config_key *key, const char *text, uint64_t value) {
    load_key(key, text);
    if (report.errors &&
        !strstr(report.errors, "reconnect_interval is above")) /* two keys that belong together */
        fail_msg("%s", report.errors);
    if (config)
        assert_true(number(key) == value);
}

static void expect_out_of_range(const struct bounds *b, const char *value, const char *words,
                                const char *bound) {
    char reason[256];

    snprintf(reason, sizeof(reason), "\"%s\" is too %s %s", value, words, bound);
    expect_key_error(find(b->name), value, reason);
}

static void test_bounds(void **state) {
    (void)state;
    for (size_t i = 0; i < LENGTH(bounds); i++) {
        const struct bounds *b = &bounds[i];

        expect_number(find(b->name), b->least, b->least_value);
        expect_number(find(b->name), b->most, b->most_value);
        expect_out_of_range(b, b->above, "large; at most", b->most);
        expect_out_of_range(b, "77777777777777777777777777", "large; at most", b->most);
        if (b->below)
            expect_out_of_range(b, b->below, "small; at least", b->least);
    }
}

static void test_bounds_cover_the_table(void **state) {
    const struct nl_config_key *key;
    size_t numbers = 0;

    (void)state;
    for (size_t i = 0; (key = key_at(i)); i++)
        numbers += is_number(key);
    assert_int_equal(numbers, LENGTH(bounds));
    for (size_t i = 0; i < LENGTH(bounds); i++) {
        assert_true(is_number(find(bounds[i].name)));
        assert_int_equal(find(bounds[i].name)->min, bounds[i].least_value);
        assert_int_equal(find(bounds[i].name)->max, bounds[i].most_value);
    }
}

static void test_number_junk(void **state) {
    static const char *const junk[] = {"x",     "-1",    "+1",  "1 2", "1e3",      "1.5",    "0x10",
                                       "1,000", "ten",   "5 s", "5S",  "5sec",     "10 MiB", "10M",
                                       "10MB",  "10mib", "ms",  "KiB", "unlimite", "8ms8"};
    static const char *const reasons[] = {
        [NL_CONFIG_COUNT] = "is not a number",
        [NL_CONFIG_LIMIT] = "is neither a number nor \"unlimited\"",
        [NL_CONFIG_TIME] = "is not a time like 250ms, 10s, 5m or 1h",
        [NL_CONFIG_SIZE] = "is not a size like 4096, 64KiB or 2MiB",
        [NL_CONFIG_MODE] = "is not an octal mode like 0660",
    };
    char reason[256];

    (void)state;
    for (size_t i = 0; i < LENGTH(bounds); i++) {
        for (size_t j = 0; j < LENGTH(junk); j++) {
            snprintf(reason, sizeof(reason), "\"%s\" %s", junk[j], reasons[find(bounds[i].name)->kind]);
            expect_key_error(find(bounds[i].name), junk[j], reason);
        }
    }
}

static void test_units(void **state) {
    static const struct {
        const char *key, *text;
        uint64_t value;
    } cases[] = {
        {"ttl", "250ms", 250},
        {"ttl", "1s", 1000},
        {"ttl", "7", 7000},
        {"ttl", "2m", 120000},
        {"ttl", "3h", 10800000},
        {"ttl", "0010ms", 10},
        {"line_limit", "4096", 4096},
        {"line_limit", "3KiB", 3072},
        {"line_limit", "5MiB", 5242880},
        {"output_per_uid", "2GiB", 2147483648},
        {"socket_mode", "666", 0666},
        {"socket_mode", "0", 0},
        {"max_reconnect_attempts", "unlimited", UINT64_MAX},
        {"publish_rate", "007", 7},
    };

    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++)
        expect_number(find(cases[i].key), cases[i].text, cases[i].value);
    expect_key_error(find("qos"), "unlimited", "\"unlimited\" is not a number");
    expect_key_error(find("socket_mode"), "0668", "\"0668\" is not an octal mode like 0660");
    /* products beyond 64 bits, which must not come back small */
    expect_key_error(find("ttl"), "18446744073709551615h",
                     "\"18446744073709551615h\" is too large; at most 24h");
    expect_key_error(find("line_limit"), "17592186044417MiB",
                     "\"17592186044417MiB\" is too large; at most 16MiB");
}

static void test_booleans(void **state) {
    static const char *const words[] = {"no", "yes", "false", "true", "off",   "on",
                                        "0",  "1",   "No",    "YES",  "FALSE", "True"};
    static const char *const junk[] = {"y", "n", "2", "maybe", "yes no", "enabled"};
    static const char *const keys[] = {"allow_client_tokens", "reconnect"};
    char reason[64];

    (void)state;
    for (size_t k = 0; k < LENGTH(keys); k++) {
        assert_int_equal(find(keys[k])->kind, NL_CONFIG_BOOL);
        for (size_t i = 0; i < LENGTH(words); i++) {
            load_key(find(keys[k]), words[i]);
            assert_null(report.errors);
            assert_int_equal(*(const bool *)field(find(keys[k])), i % 2);
        }
        for (size_t i = 0; i < LENGTH(junk); i++) {
            snprintf(reason, sizeof(reason), "\"%s\" is neither yes nor no", junk[i]);
            expect_key_error(find(keys[k]), junk[i], reason);
        }
    }
}

static void test_choices(void **state) {
    (void)state;
    expect_fine("[daemon]\nslow_consumer = drop\n" SESSION
                "filters_reported = yes\nown_messages = echo\nlate_join = none\n");
    assert_int_equal(config->daemon.slow_consumer, NL_SLOW_DROP);
    assert_int_equal(config->sessions[0].filters_reported, NL_YES);
    assert_int_equal(config->sessions[0].own_messages, NL_OWN_ECHO);
    assert_int_equal(config->sessions[0].late_join, NL_LATE_NONE);
    expect_fine("[daemon]\nslow_consumer = disconnect\n" SESSION
                "filters_reported = no\nown_messages = never\n");
    assert_int_equal(config->daemon.slow_consumer, NL_SLOW_DISCONNECT);
    assert_int_equal(config->sessions[0].filters_reported, NL_NO);
    assert_int_equal(config->sessions[0].own_messages, NL_OWN_NEVER);
    expect_fine(SESSION "filters_reported = auto\nlate_join = resubscribe\n");
    assert_int_equal(config->sessions[0].late_join, NL_LATE_RESUBSCRIBE);
    assert_int_equal(config->sessions[0].filters_reported, NL_AUTO);
    expect_key_error(find("slow_consumer"), "Drop", "\"Drop\" is not one of disconnect, drop");
    expect_key_error(find("filters_reported"), "maybe", "\"maybe\" is not one of auto, yes, no");
    expect_key_error(find("own_messages"), "yes", "\"yes\" is not one of never, echo");
    expect_key_error(find("late_join"), "yes", "\"yes\" is not one of auto, resubscribe, none");
}

static void test_log_level(void **state) {
    static const char *const levels[] = {"error", "warning", "notice", "info", "debug"};

    (void)state;
    for (size_t i = 0; i < LENGTH(levels); i++) {
        load_key(find("log_level"), levels[i]);
        assert_null(report.errors);
        assert_string_equal(config->daemon.log_level, levels[i]);
    }
    expect_key_error(find("log_level"), "warn", "\"warn\" is not one of error, warning, notice, info, debug");
}

static void test_texts(void **state) {
    char path[109];

    (void)state;
    memset(path, 'p', sizeof(path));
    path[107] = '\0';
    load_key(find("socket"), path);
    assert_string_equal(text_of(find("socket")), path);
    path[107] = 'p';
    path[108] = '\0';
    expect_key_error(find("socket"), path, "longer than 107 bytes");
    expect_fine("[daemon]\nsocket_group = root\nsocket = run/with blanks/s\n");
    assert_string_equal(config->daemon.socket_group, "root");
    assert_string_equal(config->daemon.socket, "run/with blanks/s");
    expect_key_error(find("default_session"), "a b",
                     "\"a b\" is no session name (1 to 64 letters, digits, \"_\", \".\" and \"-\")");
    expect_key_error(find("url"), "http://h/", "not a url like wss://HOST[:PORT][/PATH]");
    expect_key_error(find("client_token_url"), "wss://user:secret@h/",
                     "not a url like wss://HOST[:PORT][/PATH]");
}

/* Nothing behind "=": unset where that is possible, and a mistake elsewhere. */
static void test_empty_values(void **state) {
    const struct nl_config_key *key;
    char reason[256];

    (void)state;
    for (size_t i = 0; (key = key_at(i)); i++) {
        snprintf(reason, sizeof(reason), "no value; the default is %s", key->fallback ? key->fallback : "");
        if (key->fallback)
            expect_key_error(key, "", reason);
    }
    put("ca.pem", "x");
    mkdir("conf.d", 0700);
    put("conf.d/a.conf", "[session x]\nca_file =\n[daemon]\nsocket=;\n");
    expect_fine("[daemon]\nsocket = g\n" SESSION "ca_file = ./ca.pem\n");
    assert_null(config->sessions[0].ca_file);
    assert_string_equal(config->daemon.socket, ";"); /* no blank before it: no comment */
}

static void test_values_that_are_mistakes(void **state) {
    (void)state;
    expect_errors("[daemon]\nsocket = \"/run/x\"\nmax_clients = '5'\n",
                  "n.conf:2: socket: values are written without quotes\n"
                  "n.conf:3: max_clients: values are written without quotes\n");
    expect_errors("[daemon]\nsocket = /run/x # here\nmax_clients = 5\t# five\nsocket_group = #none\n",
                  "n.conf:2: socket: a comment behind a value begins with \";\", not \"#\"\n"
                  "n.conf:3: max_clients: a comment behind a value begins with \";\", not \"#\"\n"
                  "n.conf:4: socket_group: a comment behind a value begins with \";\", not \"#\"\n");
    expect_fine("[daemon]\nsocket = /run/x#y\n");
    assert_string_equal(config->daemon.socket, "/run/x#y");
}

/* ---- names ---- */

static void test_unknown_keys(void **state) {
    (void)state;
    expect_errors("[daemon]\nmax_client = 5\nMAX_CLIENTS = 5\nmax-clients = 5\nlog = x\nxyzzy = 1\nqos = 1\n",
                  "n.conf:2: unknown key \"max_client\" in [daemon]; did you mean \"max_clients\"?\n"
                  "n.conf:3: unknown key \"MAX_CLIENTS\" in [daemon]; did you mean \"max_clients\"?\n"
                  "n.conf:4: unknown key \"max-clients\" in [daemon]; did you mean \"max_clients\"?\n"
                  "n.conf:5: unknown key \"log\" in [daemon]; did you mean \"log_level\"?\n"
                  "n.conf:6: unknown key \"xyzzy\" in [daemon]\n"
                  "n.conf:7: unknown key \"qos\" in [daemon]; it belongs in [session NAME]\n");
    expect_errors(
        SESSION "utl = x\ntokenfile = x\nreconect_interval = 5\nheartbeat = 3\nmax_clients = 1\nq = 1\n",
        "n.conf:3: unknown key \"utl\" in [session x]; did you mean \"url\"?\n"
        "n.conf:4: unknown key \"tokenfile\" in [session x]; did you mean \"token_file\"?\n"
        "n.conf:5: unknown key \"reconect_interval\" in [session x]; did you mean \"reconnect_interval\"?\n"
        "n.conf:6: unknown key \"heartbeat\" in [session x]; did you mean \"heartbeat_interval\"?\n"
        "n.conf:7: unknown key \"max_clients\" in [session x]; it belongs in [daemon]\n"
        "n.conf:8: unknown key \"q\" in [session x]\n");
}

/* Puts one mistake into the name: a letter changed, left out, written twice, or the last one changed. */
static void misspell(char *name, const char *right, int kind) {
    size_t len = strlen(right), at = len / 2;

    strcpy(name, right);
    if (kind == 0)
        name[at] = '~';
    else if (kind == 1)
        memmove(name + at, name + at + 1, len - at);
    else if (kind == 2)
        memmove(name + at + 1, name + at, len - at + 1);
    else
        name[len - 1] = '~';
}

static void test_nearest_key(void **state) {
    const struct nl_config_key *key;
    char name[64], text[256], error[256];

    (void)state;
    for (size_t i = 0; (key = key_at(i)); i++) {
        bool in_daemon = strcmp(key->section, "daemon") == 0;

        for (int kind = 0; kind < 4; kind++) {
            misspell(name, key->name, kind);
            snprintf(text, sizeof(text), "%s%s = 1\n", in_daemon ? "[daemon]\n\n" : SESSION, name);
            snprintf(error, sizeof(error), "n.conf:3: unknown key \"%s\" in [%s]; did you mean \"%s\"?\n",
                     name, in_daemon ? "daemon" : "session x", key->name);
            expect_errors(text, error);
        }
    }
}

/* Values of unknown keys and of token_file are where misplaced tokens are found: what may be one is not
 * repeated. */
static void test_misplaced_tokens_stay_secret(void **state) {
    char expected[256], text[256];

    (void)state;
    snprintf(expected, sizeof(expected), "n.conf:2: token_file: the file of that name in %s does not exist\n",
             folder);
    expect_errors("[session x]\ntoken = at_secret\n",
                  "n.conf:2: unknown key \"token\" in [session x]; did you mean \"token_file\"?\n"
                  "n.conf:1: [session x] has no token_file\n");
    expect_errors("[session x]\ntoken_file = at_secret\n", expected);
    snprintf(text, sizeof(text), "[session x]\ntoken_file = %0*d\n", 33, 7);
    expect_errors(text, expected);
    expect_errors("[session x]\nat_secret\n" SESSION, "n.conf:2: neither a section nor KEY = VALUE\n");
}

static void test_sections(void **state) {
    (void)state;
    expect_errors("a = 1\nb = 2\n[sesion x]\nqos = junk\n[api]\n[]\n[ ]\n[daemon x]\n[session]\n[session ]\n",
                  "n.conf:1: a stands before the first section\n"
                  "n.conf:2: b stands before the first section\n"
                  "n.conf:3: unknown section [sesion]; there are [daemon] and [session NAME]\n"
                  "n.conf:5: unknown section [api]; there are [daemon] and [session NAME]\n"
                  "n.conf:6: unknown section []; there are [daemon] and [session NAME]\n"
                  "n.conf:7: unknown section []; there are [daemon] and [session NAME]\n"
                  "n.conf:8: [daemon] has no name\n"
                  "n.conf:9: a session needs a name: [session NAME]\n"
                  "n.conf:10: a session needs a name: [session NAME]\n");
    expect_errors("[daemon\nqos = junk\n[daemon] x\n[session a b]\n[session a/b]\n[session \xc3\xa4]\n",
                  "n.conf:1: a section is written as [daemon] or [session NAME]\n"
                  "n.conf:3: a section is written as [daemon] or [session NAME]\n"
                  "n.conf:4: a session's name is 1 to 64 letters, digits, \"_\", \".\" and \"-\"\n"
                  "n.conf:5: a session's name is 1 to 64 letters, digits, \"_\", \".\" and \"-\"\n"
                  "n.conf:6: a session's name is 1 to 64 letters, digits, \"_\", \".\" and \"-\"\n");
    expect_fine("[daemon] ; comment\n[ daemon ]\nmax_clients = 7\n[daemon]# comment\nmax_subscriptions = 8\n"
                "[ session\t x ]\ntoken_file = ./token\n");
    assert_int_equal(config->daemon.max_clients, 7);
    assert_int_equal(config->daemon.max_subscriptions, 8);
    assert_string_equal(config->sessions[0].name, "x");
}

/* inih alone would cut names at 49 bytes, and make one session of two. */
static void test_long_session_names(void **state) {
    char text[512], a[66];

    (void)state;
    memset(a, 'a', sizeof(a));
    a[64] = '\0';
    put("other", "at_other");
    snprintf(text, sizeof(text), "[session %s]\ntoken_file=./token\n[session %.63s-]\ntoken_file=./other\n",
             a, a);
    expect_fine(text);
    assert_int_equal(config->session_count, 2);
    assert_ptr_equal(nl_config_session(config, a), &config->sessions[0]);
    assert_string_equal(config->sessions[0].token, "at_token");
    assert_string_equal(config->sessions[1].token, "at_other");
    a[64] = 'a';
    a[65] = '\0';
    snprintf(text, sizeof(text), "[session %s]\ntoken_file=./token\n", a);
    expect_errors(text, "n.conf:1: a session's name is 1 to 64 letters, digits, \"_\", \".\" and \"-\"\n");
    assert_null(config);
    expect_fine("[session aA_.-9]\ntoken_file=./token\n");
    assert_non_null(nl_config_session(config, "aA_.-9"));
    assert_null(nl_config_session(config, "aA_.-"));
}

static void test_twice(void **state) {
    (void)state;
    expect_errors(
        "[daemon]\nmax_clients = 5\nmax_clients = 6\n[session x]\nqos=1\n[daemon]\nmax_clients = 5\n" SESSION
        "qos = 2\n",
        "n.conf:3: max_clients is set twice, first in line 2\n"
        "n.conf:7: max_clients is set twice, first in line 2\n"
        "n.conf:10: qos is set twice, first in line 5\n");
    put("other", "at_other");
    expect_fine(SESSION "qos = 2\n[session y]\ntoken_file = ./other\nqos = 0\n"); /* not the same key */
    assert_int_equal(config->sessions[0].qos, 2);
    assert_int_equal(config->sessions[1].qos, 0);
}

/* ---- lines ---- */

static void test_line_ends(void **state) {
    (void)state;
    expect_fine("[daemon]\r\nmax_clients = 5\r\nsocket = /run/s\r\n\r\n; c\r\n# c\r\n[session x]\r\n"
                "token_file = ./token\r\n");
    assert_int_equal(config->daemon.max_clients, 5);
    assert_string_equal(config->daemon.socket, "/run/s");
    expect_fine("[daemon]\nmax_clients = 6"); /* no line end at the end of the file */
    assert_int_equal(config->daemon.max_clients, 6);
    expect_errors("[daemon]\nmax_client", "n.conf:2: neither a section nor KEY = VALUE\n");
    expect_errors("[daemon]\r\nfoo\r\n", "n.conf:2: neither a section nor KEY = VALUE\n");
    expect_fine("\xef\xbb\xbf[daemon]\nmax_clients = 7\n");
    assert_int_equal(config->daemon.max_clients, 7);
    expect_fine("\xef\xbb\xbf# only a comment");
    expect_errors(
        "[daemon]\n\xef\xbb\xbfmax_clients = 7\n",
        "n.conf:2: unknown key \"\xef\xbb\xbfmax_clients\" in [daemon]; did you mean \"max_clients\"?\n");
}

static void test_blanks_and_comments(void **state) {
    (void)state;
    expect_fine("# c\n; c\n\n  \t \n   # c\n\t; c\n[daemon]\nmax_clients=5\nline_limit \t= \t 2KiB \t \n"
                "depth_limit = 5 ; c ; d\nconnect_rate: 7\nsocket = /a;b ;c\n");
    assert_int_equal(config->daemon.max_clients, 5);
    assert_int_equal(config->daemon.line_limit, 2048);
    assert_int_equal(config->daemon.depth_limit, 5);
    assert_int_equal(config->daemon.connect_rate, 7);
    assert_string_equal(config->daemon.socket, "/a;b");
    expect_fine("[daemon]\nsocket = /a=b:c\n");
    assert_string_equal(config->daemon.socket, "/a=b:c");
}

/* To inih these lines go on with the value above. */
static void test_indented_lines(void **state) {
    (void)state;
    expect_errors("[daemon]\nmax_clients = 5\n  max_subscriptions = 6\n\tfoo\n [session x]\nqos = 1\n",
                  "n.conf:3: the line begins with a blank; values end with their line\n"
                  "n.conf:4: the line begins with a blank; values end with their line\n"
                  "n.conf:5: the line begins with a blank; values end with their line\n"
                  "n.conf:6: unknown key \"qos\" in [daemon]; it belongs in [session NAME]\n");
}

static void test_control_characters(void **state) {
    static const char with_nul[] = "[daemon]\nsocket = a\0b\n";

    (void)state;
    load_bytes(with_nul, sizeof(with_nul) - 1);
    expect_text(report.errors, "n.conf:2: the line has a control character in it\n");
    expect_errors("[daemon]\nsocket = a\x1b[0m\nsocket_group = a\x7f\nlog_level = info\rx\n",
                  "n.conf:2: the line has a control character in it\n"
                  "n.conf:3: the line has a control character in it\n"
                  "n.conf:4: the line has a control character in it\n");
    expect_errors("[session\x01]\nqos = junk\n", "n.conf:1: the line has a control character in it\n");
    expect_fine("[daemon]\n# \x1b in a comment\nsocket = /run/\xc3\xa4\n");
}

/* Loads a file whose second line is such a key of len bytes, and says whether that went well. */
static void load_long(size_t len, const char *line_end) {
    char text[1024] = "[daemon]\n";
    size_t start = strlen(text);

    memset(text + start, 'g', len);
    memcpy(text + start, LONG_KEY, strlen(LONG_KEY));
    strcpy(text + start + len, line_end);
    strcat(text, "max_clients = 5\n");
    load_text(text);
}

static void test_long_lines(void **state) {
    static const char *const ends[] = {"\n", "\r\n"};
    char expected[128];

    (void)state;
    for (size_t e = 0; e < LENGTH(ends); e++) {
        for (size_t len = 195; len < 205; len++) {
            load_long(len, ends[e]);
            snprintf(expected, sizeof(expected), "n.conf:2: the line is %zu bytes long; the most is 199\n",
                     len);
            expect_text(report.errors, len <= 199 ? "" : expected);
            if (len > 199)
                continue;
            assert_int_equal(strlen(config->daemon.client_token_url), len - strlen("client_token_url = "));
            assert_int_equal(config->daemon.max_clients, 5);
        }
    }
    load_long(900, "\n");
    expect_text(report.errors, "n.conf:2: the line is 900 bytes long; the most is 199\n");
}

static void test_long_other_lines(void **state) {
    char text[1024];

    (void)state;
    memset(text, 'x', sizeof(text));
    text[0] = '#'; /* a comment may be of any length, and what it says stays one */
    strcpy(text + 300, "= 1\n[daemon]\nmax_clients = 5\n");
    expect_fine(text);
    assert_int_equal(config->daemon.max_clients, 5);
    memset(text, ' ', 300); /* as may a line of blanks */
    strcpy(text + 300, "\n[daemon]\nmax_clients = 6\n");
    expect_fine(text);
    assert_int_equal(config->daemon.max_clients, 6);
    memset(text, 'x', 300);
    memcpy(text, "[session ", 9);
    strcpy(text + 300, "]\nqos = junk\n");
    expect_errors(text, "n.conf:1: the line is 301 bytes long; the most is 199\n");
}

/* Whatever bytes a file has: findings, no crash. */
static void test_garbage(void **state) {
    uint64_t x = 88172645463325252ULL;
    char bytes[600];

    (void)state;
    for (int round = 0; round < 300; round++) {
        for (size_t i = 0; i < sizeof(bytes); i++) {
            x ^= x << 13, x ^= x >> 7, x ^= x << 17;
            bytes[i] = round % 2 ? (char)x : "[]daemonsi=;# \t\n\r:0_"[x % 21];
        }
        load_bytes(bytes, sizeof(bytes));
        assert_non_null(report.errors);
    }
}

/* ---- files ---- */

static void test_unreadable_files(void **state) {
    (void)state;
    load("absent.conf");
    expect_text(report.errors, "absent.conf: cannot read it: No such file or directory\n");
    load("/absent/n.conf");
    expect_text(report.errors, "/absent/n.conf: cannot read it: No such file or directory\n");
    load(".");
    expect_text(report.errors, ".: cannot read it: Is a directory\n");
    put("conf.d", "");
    expect_errors("", "./conf.d: cannot read it: Not a directory\n");
}

static void test_drop_in_order(void **state) {
    (void)state;
    mkdir("conf.d", 0700);
    put("conf.d/b.conf", "[daemon]\nmax_clients = 3\ndepth_limit = 3\n");
    put("conf.d/a.conf", "[daemon]\nmax_clients = 2\ndepth_limit = 2\nconnect_rate = 2\n");
    put("conf.d/B.conf",
        "[daemon]\nconnect_rate = 9\nline_limit = 9KiB\n"); /* before a, whatever the locale */
    put("conf.d/.c.conf", "junk");
    put("conf.d/c.conf~", "junk");
    put("conf.d/c.conf.dpkg-old", "junk");
    put("conf.d/README", "junk");
    put("conf.d/.conf", "junk");
    expect_fine("[daemon]\nmax_clients = 1\ndepth_limit = 1\nconnect_rate = 1\nmax_subscriptions = 1\n");
    assert_int_equal(config->daemon.max_subscriptions, 1);
    assert_int_equal(config->daemon.connect_rate, 2);
    assert_int_equal(config->daemon.line_limit, 9 << 10);
    assert_int_equal(config->daemon.depth_limit, 3);
    assert_int_equal(config->daemon.max_clients, 3);
}

static void test_drop_ins_merge_sessions(void **state) {
    (void)state;
    mkdir("conf.d", 0700);
    put("other", "at_other");
    put("conf.d/a.conf", "[session x]\nqos = 2\n[session y]\ntoken_file = ./other\n");
    put("conf.d/b.conf", "[session y]\nqos = 0\n");
    expect_fine(SESSION "qos = 0\nttl = 5\n");
    assert_int_equal(config->session_count, 2);
    assert_int_equal(config->sessions[0].qos, 2);
    assert_int_equal(config->sessions[0].ttl_ms, 5000);
    assert_string_equal(config->sessions[1].name, "y");
    assert_int_equal(config->sessions[1].qos, 0);
}

static void test_drop_in_findings(void **state) {
    (void)state;
    mkdir("conf.d", 0700);
    put("conf.d/a.conf", "qos = 1\n[daemon]\nfoo = 1\nmax_clients = 1\nmax_clients = 2\n");
    mkdir("conf.d/b.conf", 0700);
    expect_errors(
        "[session x]\n[daemon]\nmax_clients = 7\n",
        "./conf.d/a.conf:1: qos stands before the first section\n" /* sections end with their file */
        "./conf.d/a.conf:3: unknown key \"foo\" in [daemon]\n"
        "./conf.d/a.conf:5: max_clients is set twice, first in line 4\n"
        "./conf.d/b.conf: cannot read it: Is a directory\n"
        "n.conf:1: [session x] has no token_file\n");
}

static void test_empty_folder_of_drop_ins(void **state) {
    (void)state;
    mkdir("conf.d", 0700);
    errno = EIO; /* of something else, long ago */
    expect_fine(SESSION);
}

/* conf.d is beside the file, wherever that is. */
static void test_drop_ins_elsewhere(void **state) {
    char path[64];

    (void)state;
    mkdir("etc", 0700);
    mkdir("etc/conf.d", 0700);
    put("etc/n.conf", "[session x]\ntoken_file = token\n");
    put("etc/token", "at_beside");
    put("etc/conf.d/a.conf", "[daemon]\nmax_clients = 3\n");
    snprintf(path, sizeof(path), "%s/etc/n.conf", folder);
    load(path);
    expect_text(report.errors, "");
    assert_int_equal(config->daemon.max_clients, 3);
    assert_string_equal(config->sessions[0].token, "at_beside");
}

/* ---- tokens ---- */

static void expect_token(const char *content, const char *token) {
    put("token", content);
    expect_fine(SESSION);
    assert_string_equal(config->sessions[0].token, token);
}

static void expect_token_error(const char *reason) {
    char expected[256];

    load_text(SESSION);
    snprintf(expected, sizeof(expected), "n.conf:2: token_file: ./token %s\n", reason);
    expect_text(report.errors, expected);
}

static void test_token_content(void **state) {
    char long_token[4096 + 80];

    (void)state;
    expect_token("a", "a");
    expect_token("at_x\r\n", "at_x");
    expect_token("at_x \t\n\n\v\f", "at_x");
    expect_token("\xc3\xa4", "\xc3\xa4");
    memset(long_token, 't', sizeof(long_token));
    long_token[4096] = '\0';
    expect_token(long_token, long_token);
    memcpy(long_token + 4096, "\r\n", 3);
    put("token", long_token);
    expect_fine(SESSION);
    assert_int_equal(strlen(config->sessions[0].token), 4096);
}

static void test_token_content_refused(void **state) {
    static const struct {
        const char *content, *reason;
    } cases[] = {
        {"", "is empty"},
        {" \n\t\r\n", "is empty"},
        {"at_x\nat_y\n", "has more than one line"},
        {"at_\x01", "has a control character in it"},
        {"\tat_x", "has a control character in it"},
        {"at_x\x7f", "has a control character in it"},
        {"at x", "has a blank in it, which no token has"},
        {" at_x", "has a blank in it, which no token has"},
        {"\xef\xbb\xbf"
         "at_x",
         "begins with a byte order mark"},
        {"\xef\xbb\xbf\n", "begins with a byte order mark"},
    };
    char bytes[8192];

    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        put("token", cases[i].content);
        expect_token_error(cases[i].reason);
    }
    put_bytes("token", "at\0x", 4, 0600);
    expect_token_error("has a control character in it");
    memset(bytes, 't', sizeof(bytes));
    put_bytes("token", bytes, 4097, 0600);
    expect_token_error("is longer than 4096 bytes");
    put_bytes("token", bytes, sizeof(bytes), 0600);
    expect_token_error("is longer than 4096 bytes");
    memset(bytes + 4, ' ', sizeof(bytes) - 4); /* what is behind all these blanks has not been seen */
    put_bytes("token", bytes, sizeof(bytes), 0600);
    expect_token_error("is longer than 4096 bytes");
}

/* Every mode that the owner can read. */
static void test_token_modes(void **state) {
    (void)state;
    for (mode_t mode = 0400; mode <= 0777; mode++) {
        if (!(mode & 0400))
            continue;
        put_bytes("token", "at_x", 4, mode);
        if (mode & 0006)
            expect_token_error("can be read or written by everyone (chmod o= takes that away)");
        else
            expect_fine(SESSION);
    }
}

static void test_token_files(void **state) {
    (void)state;
    unlink("token");
    expect_token_error("does not exist");
    mkdir("token", 0700);
    expect_token_error("is not a regular file");
    rmdir("token");
    assert_int_equal(mkfifo("token", 0600), 0); /* nobody writes to it: opening must not wait */
    expect_token_error("is not a regular file");
    unlink("token");
    put("real", "at_real");
    assert_int_equal(symlink("real", "token"), 0);
    expect_fine(SESSION);
    assert_string_equal(config->sessions[0].token, "at_real");
    unlink("token");
    assert_int_equal(symlink("token", "token"), 0);
    expect_token_error("cannot be opened");
    expect_errors("[session x]\ntoken_file = real/token\n",
                  "n.conf:2: token_file: real/token is in something that is not a folder\n");
}

static void test_token_permission(void **state) {
    bool root = geteuid() == 0;

    (void)state;
    put("n.conf", SESSION);
    chmod("n.conf", 0644);
    chmod(folder, 0755);
    chmod("token", root ? 0600 : 0000);
    if (root)
        assert_int_equal(seteuid(65534), 0);
    load("n.conf");
    if (root)
        assert_int_equal(seteuid(0), 0);
    expect_text(report.errors, "n.conf:2: token_file: ./token cannot be opened: permission denied\n");
}

/* Where the configuration lies may not be where one is: a message must lead to the file. */
static void test_missing_token_is_named_in_full(void **state) {
    char expected[256];

    (void)state;
    mkdir("etc", 0700);
    put("etc/n.conf", "[session x]\ntoken_file = token-default\n");
    load("etc/n.conf");
    snprintf(
        expected, sizeof(expected),
        "etc/n.conf:2: token_file: the file %s/etc/token-default does not exist; if it is a credential of "
        "nolagd.service, only the service has it: journalctl -u nolagd tells what is wrong then\n",
        folder);
    expect_text(report.errors, expected);
}

static void test_credentials(void **state) {
    char path[64], expected[512];

    (void)state;
    snprintf(path, sizeof(path), "%s/credentials", folder);
    mkdir("credentials", 0700);
    setenv("CREDENTIALS_DIRECTORY", path, 1);
    put("credentials/token", "at_credential\n");
    expect_fine("[session x]\ntoken_file = token\n");
    assert_string_equal(config->sessions[0].token, "at_credential");
    expect_fine(SESSION); /* a path is no credential */
    assert_string_equal(config->sessions[0].token, "at_token");
    put("other", "at_other"); /* not looked for beside the configuration */
    load_text("[session x]\ntoken_file = other\n");
    snprintf(expected, sizeof(expected),
             "n.conf:2: token_file: the credential %s/other does not exist; put the actor token "
             "into the "
             "file that LoadCredential= of nolagd.service names for it (for \"token-default\" as shipped: "
             "/etc/nolagd/tokens/default), and start nolagd again\n",
             path);
    expect_text(report.errors, expected);
    put("credentials/other", " "); /* what the unit hands over while there is no token */
    load_text("[session x]\ntoken_file = other\n");
    assert_non_null(
        strstr(report.errors, " is empty; put the actor token into the file that LoadCredential= "));
}

/* ---- keys that have to do with each other ---- */

static void test_no_sessions(void **state) {
    (void)state;
    expect_warnings("", "n.conf: " NO_SESSION);
    expect_warnings("[daemon]\nallow_client_tokens = yes\n", "n.conf: " NO_SESSION);
    expect_warnings("#[session default]\n#token_file = token\n", "n.conf: " NO_SESSION);
    expect_warnings("[daemon]\nallow_client_tokens = no\n",
                    "n.conf:2: no session, and allow_client_tokens is no: no client can do anything\n");
    expect_fine("[daemon]\nallow_client_tokens = no\n" SESSION);
}

static void test_socket_group_exists(void **state) {
    (void)state;
    expect_fine("[daemon]\nsocket_group = root\n" SESSION);
    expect_fine("[daemon]\nsocket_group =\n" SESSION);
    expect_errors("[daemon]\nsocket_group = no such group\n" SESSION,
                  "n.conf:2: socket_group: there is no group \"no such group\"\n");
}

static void test_token_required(void **state) {
    (void)state;
    expect_errors("# c\n[session x]\nqos = 1\n[session y]\ntoken_file =\n",
                  "n.conf:2: [session x] has no token_file\n"
                  "n.conf:5: [session y] has no token_file\n");
}

static void test_same_session_twice(void **state) {
    static const char *const same[] = {"wss://Broker.NoLag.app/ws", "WSS://broker.nolag.app:443/ws"};
    static const char *const others[] = {"ws://broker.nolag.app:443/ws", "wss://broker.nolag.app/ws/",
                                         "wss://broker.nolag.app:444/ws", "wss://broker2.nolag.app/ws"};
    char text[256];

    (void)state;
    put("copy", "at_token"); /* another file, without the line end: the same token */
    for (size_t i = 0; i < LENGTH(same); i++) {
        snprintf(text, sizeof(text), SESSION "[session y]\ntoken_file = ./copy\nurl = %s\n", same[i]);
        expect_errors(text, "n.conf:4: [session y] has the token and the url of [session x]: "
                            "they would be one session\n");
    }
    for (size_t i = 0; i < LENGTH(others); i++) {
        snprintf(text, sizeof(text), SESSION "[session y]\ntoken_file = ./copy\nurl = %s\n", others[i]);
        load_text(text);
        expect_text(report.errors, "");
    }
    put("copy", "at_tokem");
    expect_fine(SESSION "[session y]\ntoken_file = ./copy\n");
}

static void test_default_session(void **state) {
    (void)state;
    put("other", "at_other");
#define TWO(a, b)                                                                                            \
    "[session " a "]\ntoken_file = ./token\n[session " b "]\ntoken_file = ./other\nurl = wss://b/\n"
    expect_fine(TWO("a", "b"));
    assert_null(nl_config_default_session(config));
    assert_string_equal(config->daemon.client_token_url, VENDOR);
    expect_fine(TWO("a", "default"));
    assert_ptr_equal(nl_config_default_session(config), &config->sessions[1]);
    assert_string_equal(config->daemon.client_token_url, "wss://b/");
    expect_fine(TWO("default", "b") "[daemon]\ndefault_session = b\n");
    assert_ptr_equal(nl_config_default_session(config), &config->sessions[1]);
    expect_fine(TWO("default", "b") "[daemon]\nclient_token_url = wss://c/\n");
    assert_ptr_equal(nl_config_default_session(config), &config->sessions[0]);
    assert_string_equal(config->daemon.client_token_url, "wss://c/");
    expect_fine(SESSION "url = wss://d/\n");
    assert_ptr_equal(nl_config_default_session(config), &config->sessions[0]);
    assert_string_equal(config->daemon.client_token_url, "wss://d/");
    expect_fine("");
    assert_null(nl_config_default_session(config));
    expect_errors(SESSION "[daemon]\ndefault_session = y\n",
                  "n.conf:4: default_session: there is no [session y]\n");
}

static void test_reconnect_intervals(void **state) {
    (void)state;
    expect_fine(SESSION "reconnect_interval = 5\nreconnect_max_interval = 5\n");
    expect_errors(SESSION "reconnect_interval = 61\n",
                  "n.conf:3: reconnect_interval is above reconnect_max_interval\n");
    expect_errors(SESSION "reconnect_max_interval = 999ms\n",
                  "n.conf:3: reconnect_interval is above reconnect_max_interval\n");
}

static void test_heartbeat_warnings(void **state) {
    (void)state;
    expect_warnings(
        SESSION "\nheartbeat_interval = 0\n",
        "n.conf:4: heartbeat_interval: without heartbeats the broker closes a connection after 60s of "
        "silence\n");
    expect_warnings(
        SESSION "heartbeat_interval = 1m\n",
        "n.conf:3: heartbeat_interval: the broker closes a connection after 60s of silence; less is "
        "needed\n");
    expect_fine(SESSION "heartbeat_interval = 59999ms\n");
}

static void test_plain_text_warnings(void **state) {
    static const char *const near[] = {"ws://localhost",  "ws://LOCALHOST:1/x", "ws://127.0.0.1:1",
                                       "ws://127.9.9.9/", "ws://[::1]:8080/ws", "wss://example.com/"};
    char text[256];

    (void)state;
    for (size_t i = 0; i < LENGTH(near); i++) {
        snprintf(text, sizeof(text), SESSION "url = %s\n[daemon]\nclient_token_url = %s\n", near[i], near[i]);
        expect_fine(text);
    }
    expect_warnings(SESSION "url = ws://example.com/ws\n",
                    "n.conf:3: url: ws:// sends the token to example.com for everyone on the way to read; "
                    "wss:// does not\n");
    expect_warnings(
        "[daemon]\nclient_token_url = ws://[::2]/\n",
        "n.conf:2: client_token_url: ws:// sends the token to ::2 for everyone on the way to read; "
        "wss:// does not\nn.conf: " NO_SESSION);
    expect_warnings(SESSION "url = ws://128.0.0.1/ws\n",
                    "n.conf:3: url: ws:// sends the token to 128.0.0.1 for everyone on the way to read; "
                    "wss:// does not\n");
}

static void test_ca_file(void **state) {
    (void)state;
    put("ca.pem", "x");
    expect_fine(SESSION "ca_file = ./ca.pem\n");
    assert_string_equal(config->sessions[0].ca_file, "./ca.pem");
    expect_errors(SESSION "ca_file = ./absent.pem\n",
                  "n.conf:3: ca_file: cannot read ./absent.pem: No such file or directory\n");
}

/* Findings of all files and of all kinds come together. */
static void test_all_findings_at_once(void **state) {
    (void)state;
    mkdir("conf.d", 0700);
    put("conf.d/a.conf", "[session x]\nqos = 3\nheartbeat_interval = 0\n");
    load_text("[daemon]\nmax_clients = 0\n[session x]\n");
    expect_text(report.errors, "n.conf:2: max_clients: \"0\" is too small; at least 1\n"
                               "./conf.d/a.conf:2: qos: \"3\" is too large; at most 2\n"
                               "n.conf:3: [session x] has no token_file\n");
    expect_text(report.warnings,
                "./conf.d/a.conf:3: heartbeat_interval: without heartbeats the broker closes a "
                "connection after 60s of silence\n");
}

/* ---- urls ---- */

static void test_urls(void **state) {
    static const struct {
        const char *url;
        bool tls;
        const char *host;
        uint16_t port;
        const char *path;
    } cases[] = {
        {"wss://broker.nolag.app/ws", true, "broker.nolag.app", 443, "/ws"},
        {"ws://h", false, "h", 80, "/"},
        {"wss://h", true, "h", 443, "/"},
        {"ws://h/", false, "h", 80, "/"},
        {"WS://h:1/x", false, "h", 1, "/x"},
        {"WsS://H.example:65535", true, "H.example", 65535, "/"},
        {"ws://127.0.0.1:8080/ws", false, "127.0.0.1", 8080, "/ws"},
        {"ws://[::1]", false, "::1", 80, "/"},
        {"wss://[2001:db8::1]:8443/a/b?c=d&e", true, "2001:db8::1", 8443, "/a/b?c=d&e"},
        {"ws://[::ffff:1.2.3.4]/", false, "::ffff:1.2.3.4", 80, "/"},
        {"ws://h?x=1", false, "h", 80, "/?x=1"},
        {"ws://h:9?x=1:2@3", false, "h", 9, "/?x=1:2@3"},
        {"ws://h/a:b@c", false, "h", 80, "/a:b@c"},
        {"ws://h:00080/", false, "h", 80, "/"},
        {"ws://under_score-host./", false, "under_score-host.", 80, "/"},
        {"ws://h/%20%23", false, "h", 80, "/%20%23"},
    };
    char *host, *path;
    uint16_t port;
    bool tls;

    (void)state;
    for (size_t i = 0; i < LENGTH(cases); i++) {
        assert_true(nl_url_parse(cases[i].url, &tls, &host, &port, &path));
        assert_int_equal(tls, cases[i].tls);
        assert_string_equal(host, cases[i].host);
        assert_int_equal(port, cases[i].port);
        assert_string_equal(path, cases[i].path);
        free(host);
        free(path);
    }
}

static void test_bad_urls(void **state) {
    static const char *const urls[] = {
        "",
        "ws",
        "ws:",
        "ws:/",
        "ws://",
        "wss://",
        "wss:///ws",
        "ws://:80",
        "ws://?x",
        "ws://#",
        "h",
        "//h/",
        "ws:h",
        "http://h/",
        "https://h/",
        "wsss://h/",
        " ws://h",
        "ws://h ",
        "ws://h /",
        "ws:// h",
        "ws://h:",
        "ws://h:/",
        "ws://h:0",
        "ws://h:65536",
        "ws://h:99999999999999999999",
        "ws://h:-1",
        "ws://h:+1",
        "ws://h:8o",
        "ws://h:80:80",
        "ws://h: 80",
        "ws://user@h/",
        "ws://user:pw@h/",
        "ws://@h/",
        "ws://h@/",
        "ws://h/#",
        "ws://h#x",
        "ws://h/a?b#c",
        "ws://h/a b",
        "ws://h/\r\nX: y",
        "ws://h/\t",
        "ws://h/\x7f",
        "ws://h/\xc3\xa4",
        "ws://\xc3\xa4/",
        "ws://h%41/",
        "ws://h\\/",
        "ws://a..b/",
        "ws://.a/",
        "ws://-a/",
        "ws://a,b/",
        "ws://[",
        "ws://[]",
        "ws://[::1",
        "ws://::1]/",
        "ws://[::1]x",
        "ws://[::1]80",
        "ws://[::1]:",
        "ws://[::1]:0",
        "ws://[h]",
        "ws://[1.2.3.4]",
        "ws://[::1%25eth0]/",
        "ws://[1:2]/",
        "ws://[::1/]",
        "ws://[1111:1111:1111:1111:1111:1111:1111:1111:1111:1111]/",
    };
    char *host, *path, text[300];
    uint16_t port;
    bool tls;

    (void)state;
    for (size_t i = 0; i < LENGTH(urls); i++) {
        host = path = text;
        if (nl_url_parse(urls[i], &tls, &host, &port, &path))
            fail_msg("%s was taken", urls[i]);
        assert_null(host);
        assert_null(path);
    }
    memset(text, 'h', sizeof(text));
    memcpy(text, "ws://", 5);
    text[5 + 253] = '\0'; /* the longest name there can be, and one more */
    assert_true(nl_url_parse(text, &tls, &host, &port, &path));
    free(host);
    free(path);
    text[5 + 253] = 'h';
    text[5 + 254] = '\0';
    assert_false(nl_url_parse(text, &tls, &host, &port, &path));
}

/* ---- the file that is installed ---- */

static char shipped[PATH_MAX];

/* The transcripts' folder is what the build tells a test of where the source is. */
static int find_shipped(void **state) {
    const char *transcripts = getenv("NL_TRANSCRIPTS");
    char path[PATH_MAX];

    (void)state;
    snprintf(path, sizeof(path), "%s/../../../conf", transcripts ? transcripts : "tests/broker/transcripts");
    return realpath(path, shipped) ? 0 : -1;
}

static void read_file(const char *name, char *text, size_t size) {
    char path[PATH_MAX + 32];
    size_t len;
    FILE *f;

    snprintf(path, sizeof(path), "%s/%s", shipped, name);
    f = fopen(path, "re");
    assert_non_null(f);
    len = fread(text, 1, size - 1, f);
    text[len] = '\0';
    assert_true(len > 100 && len < size - 1);
    fclose(f);
}

static void read_shipped(char *text, size_t size) {
    read_file("nolagd.conf", text, size);
}

static void test_shipped_file_loads(void **state) {
    char text[32768];

    (void)state;
    read_shipped(text, sizeof(text));
    put("token-default", "at_shipped\n");
    expect_fine(text);
    assert_int_equal(config->session_count, 1);
    assert_string_equal(config->sessions[0].name, "default");
    assert_string_equal(config->sessions[0].token, "at_shipped");
    expect_session_defaults(config->sessions);
}

/* A line "#key = default" for every key, once, in its section; and none for what is no key. */
static void test_shipped_file_names_every_key(void **state) {
    char text[32768], line[256], *section, *part[2], *s;
    const struct nl_config_key *key;
    size_t named = 0, count;

    (void)state;
    text[0] = '\n';
    read_shipped(text + 1, sizeof(text) - 1);
    section = strstr(text, "\n[session default]\n");
    assert_non_null(section);
    *section = '\0';
    part[0] = strstr(text, "\n[daemon]\n");
    part[1] = section + 1;
    assert_non_null(part[0]);
    for (size_t i = 0; (key = key_at(i)); i++) {
        const char *value = strcmp(key->name, "token_file") == 0 ? "token-default" : key->fallback;

        snprintf(line, sizeof(line), "\n%s%s =%s%s\n", strcmp(key->name, "token_file") == 0 ? "" : "#",
                 key->name, value ? " " : "", value ? value : "");
        s = strstr(part[strcmp(key->section, "session") == 0], line);
        if (!s)
            fail_msg("nolagd.conf lacks \"%s\"", line + 1);
        assert_null(strstr(s + 1, line));
    }
    nl_config_keys(&count);
    for (int i = 0; i < 2; i++) {
        for (s = part[i]; (s = strstr(s, "\n#")); s++)
            named += s[2] >= 'a' && s[2] <= 'z';
    }
    assert_int_equal(named, count - 1);
}

/* With every "#" before a key taken away it still says the same. */
static void test_shipped_file_uncommented(void **state) {
    char text[32768];

    (void)state;
    read_shipped(text, sizeof(text));
    put("token-default", "at_shipped\n");
    for (char *s = text; (s = strstr(s, "\n#")); s++) {
        if (s[2] >= 'a' && s[2] <= 'z')
            memmove(s + 1, s + 2, strlen(s + 2) + 1);
    }
    expect_fine(text);
    expect_session_defaults(config->sessions);
    assert_string_equal(config->daemon.client_token_url, VENDOR);
}

static void test_shipped_example_loads(void **state) {
    char text[32768];

    (void)state;
    mkdir("conf.d", 0700);
    put("token-default", "at_shipped\n");
    put("token-ops", "at_ops\n");
    read_shipped(text, sizeof(text));
    put("n.conf", text);
    read_file("second-session.conf", text, sizeof(text));
    put("conf.d/second-session.conf", text);
    load("n.conf");
    expect_text(report.errors, "");
    expect_text(report.warnings, "");
    assert_int_equal(config->session_count, 2);
    assert_string_equal(nl_config_session(config, "ops")->token, "at_ops");
    assert_string_equal(nl_config_default_session(config)->name, "default");
}

#define TEST(f) cmocka_unit_test_setup_teardown(f, setup, teardown)

int main(void) {
    const struct CMUnitTest tests[] = {
        TEST(test_table),
        TEST(test_daemon_defaults),
        TEST(test_session_defaults),
        TEST(test_session_like_another),
        TEST(test_written_defaults),
        TEST(test_bounds),
        TEST(test_bounds_cover_the_table),
        TEST(test_number_junk),
        TEST(test_units),
        TEST(test_booleans),
        TEST(test_choices),
        TEST(test_log_level),
        TEST(test_texts),
        TEST(test_empty_values),
        TEST(test_values_that_are_mistakes),
        TEST(test_unknown_keys),
        TEST(test_nearest_key),
        TEST(test_misplaced_tokens_stay_secret),
        TEST(test_missing_token_is_named_in_full),
        TEST(test_sections),
        TEST(test_long_session_names),
        TEST(test_twice),
        TEST(test_line_ends),
        TEST(test_blanks_and_comments),
        TEST(test_indented_lines),
        TEST(test_control_characters),
        TEST(test_long_lines),
        TEST(test_long_other_lines),
        TEST(test_garbage),
        TEST(test_unreadable_files),
        TEST(test_drop_in_order),
        TEST(test_drop_ins_merge_sessions),
        TEST(test_drop_in_findings),
        TEST(test_empty_folder_of_drop_ins),
        TEST(test_drop_ins_elsewhere),
        TEST(test_token_content),
        TEST(test_token_content_refused),
        TEST(test_token_modes),
        TEST(test_token_files),
        TEST(test_token_permission),
        TEST(test_credentials),
        TEST(test_no_sessions),
        TEST(test_socket_group_exists),
        TEST(test_token_required),
        TEST(test_same_session_twice),
        TEST(test_default_session),
        TEST(test_reconnect_intervals),
        TEST(test_heartbeat_warnings),
        TEST(test_plain_text_warnings),
        TEST(test_ca_file),
        TEST(test_all_findings_at_once),
        TEST(test_urls),
        TEST(test_bad_urls),
        TEST(test_shipped_file_loads),
        TEST(test_shipped_file_names_every_key),
        TEST(test_shipped_file_uncommented),
        TEST(test_shipped_example_loads),
    };

    return cmocka_run_group_tests(tests, find_shipped, NULL);
}
