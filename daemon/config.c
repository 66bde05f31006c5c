/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From top to bottom: findings, keys, sections, lines and files, tokens, and the checks that need more than
 * one key.
 *
 * inih splits a line into key and value, and no more than that: it cuts lines and section names that are
 * long, joins an indented line to the key above, goes on after errors without telling their lines, and hides
 * line numbers from its handler. So our reader looks at every line first, keeps the section, and hands inih
 * only lines with a key.
 */
#include "daemon/config.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <grp.h>
#include <ini.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "daemon/util/token_file.h"
#include "daemon/util/url.h"
#include "protocol/alloc.h"
#include "protocol/buffer.h"

#define BROKER_IDLE_MS 60000 /* of silence, after which the broker closes a connection */
#define SHOWN_NAME_MAX 32    /* of a token_file; a longer one may be a token */

/* ---- findings ---- */

/* Where something was said; file is NULL when it was not. */
struct place {
    const char *file;
    unsigned line;
};

/* Where a section and each of its keys were last set. */
struct origin {
    struct place header;
    struct place *keys; /* as many as there are keys */
};

static struct place *new_places(void) {
    size_t count;

    nl_config_keys(&count);
    return nl_calloc(count, sizeof(struct place));
}

static struct place *key_place(const struct origin *origin, const struct nl_config_key *key) {
    return &origin->keys[key - nl_config_keys(&(size_t){0})];
}

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
        nl_buffer_format(to, "%s:%u: ", place.file, place.line);
    else
        nl_buffer_format(to, "%s: ", place.file);
    nl_buffer_formatv(to, format, args);
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

/* ---- one key ---- */

/* "[daemon]" or "[session NAME]", for messages. */
static void append_section(struct nl_buffer *b, const struct loader *l) {
    if (l->where == IN_SESSION)
        nl_buffer_format(b, "[session %s]", l->config->sessions[l->session].name);
    else
        nl_buffer_format(b, "[daemon]");
}

/* Only the name is told: a value may be a token that came into the wrong place. */
static void fail_unknown_key(struct loader *l, const char *section, const char *name) {
    const char *other = l->where == IN_SESSION ? "daemon" : "session";
    const struct nl_config_key *nearest = nl_config_nearest_key(section, name);
    struct nl_buffer text;
    char *message;

    nl_buffer_init(&text);
    nl_buffer_format(&text, "unknown key \"%s\" in ", name);
    append_section(&text, l);
    if (nl_config_key(other, name))
        nl_buffer_format(&text, "; it belongs in [%s]", l->where == IN_SESSION ? "daemon" : "session NAME");
    else if (nearest)
        nl_buffer_format(&text, "; did you mean \"%s\"?", nearest->name);
    message = nl_buffer_take_text(&text);
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
    const struct nl_config_key *key = nl_config_key(section, name);
    struct origin *origin = in_session ? &l->sessions[l->session] : &l->daemon;
    void *base = in_session ? (void *)&l->config->sessions[l->session] : (void *)&l->config->daemon;
    struct nl_buffer why;

    if (!key) {
        fail_unknown_key(l, section, name);
        return;
    }
    if (!claim_place(l, key_place(origin, key), name))
        return;
    nl_buffer_init(&why);
    if (!nl_config_set(key, base, value, &why))
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
    nl_config_add_session(c, name);
    l->sessions = nl_realloc(l->sessions, c->session_count * sizeof(*l->sessions));
    l->sessions[l->session] = (struct origin){.header = l->here, .keys = new_places()};
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
    else if (more || !nl_config_is_session_name(name))
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
    nl_buffer_format(&b, "%s/%s", folder, name);
    return nl_buffer_take_text(&b);
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

static const struct nl_config_key *session_key(const char *name) {
    return nl_config_key("session", name);
}

/* Where the key was set, or else where the session begins. */
static struct place place_of(const struct origin *origin, const struct nl_config_key *key) {
    const struct place *place = key_place(origin, key);

    return place->file ? *place : origin->header;
}

static const char credential_advice[] =
    "put the actor token into the file that LoadCredential= of nolagd.service names for it "
    "(for \"token-default\" as shipped: /etc/nolagd/tokens/default), and start nolagd again";

static const char no_credential_advice[] = "if it is a credential of nolagd.service, only the service has "
                                           "it: journalctl -u nolagd tells what is wrong "
                                           "then";

/* A token that was pasted in the place of a file name must not be seen in a message. */
static bool may_be_token(const char *name) {
    return strncmp(name, "at_", 3) == 0 || strlen(name) > SHOWN_NAME_MAX;
}

/* The folder from the root on, if it is there at all. For free(). */
static char *full_folder(char *folder) {
    char full[PATH_MAX];

    if (!realpath(folder, full))
        return folder;
    free(folder);
    return nl_strdup(full);
}

static void read_bare_token(struct loader *l, struct nl_session_config *s, struct place place) {
    bool credential, secret = may_be_token(s->token_file);
    char *folder = full_folder(token_folder(l, &credential)), *path = join_path(folder, s->token_file);
    const char *kind = credential ? "credential" : "file", *why = nl_token_file_read(path, &s->token);
    bool missing = why && strcmp(why, "does not exist") == 0;
    const char *advice = credential ? credential_advice : missing && !secret ? no_credential_advice : "";

    if (why)
        fail(l, place, "token_file: the %s %s%s %s%s%s", kind, secret ? "of that name in " : "",
             secret ? folder : path, why, advice[0] == '\0' ? "" : "; ", advice);
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
        why = nl_token_file_read(s->token_file, &s->token);
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
        const char *set = key_place(o, session_key("reconnect_interval"))->file ? "reconnect_interval"
                                                                                : "reconnect_max_interval";

        fail(l, place_of(o, session_key(set)), "reconnect_interval is above reconnect_max_interval");
    }
    if (s->heartbeat_interval_ms == 0)
        warn(l, place_of(o, session_key("heartbeat_interval")),
             "heartbeat_interval: without heartbeats the broker closes a connection after 60s of silence");
    else if (s->heartbeat_interval_ms >= BROKER_IDLE_MS)
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

/* A file in which everything is still a comment is a mistake that is easily made. */
static void check_purpose(struct loader *l) {
    const struct nl_config_key *allow = nl_config_key("daemon", "allow_client_tokens");

    if (l->config->session_count > 0)
        return;
    if (l->config->daemon.allow_client_tokens)
        warn(l, (struct place){.file = l->path},
             "there is no [session NAME]: only clients with tokens of their own can do anything");
    else
        warn(l, place_of(&l->daemon, allow),
             "no session, and allow_client_tokens is no: no client can do anything");
}

static void check_daemon(struct loader *l) {
    const struct nl_daemon_config *d = &l->config->daemon;
    const struct nl_config_key *session = nl_config_key("daemon", "default_session");
    const struct nl_config_key *url = nl_config_key("daemon", "client_token_url");
    const struct nl_config_key *group = nl_config_key("daemon", "socket_group");

    if (d->default_session && !nl_config_session(l->config, d->default_session))
        fail(l, place_of(&l->daemon, session), "default_session: there is no [session %s]",
             d->default_session);
    if (d->client_token_url)
        check_url(l, place_of(&l->daemon, url), "client_token_url", d->client_token_url);
    /* cppcheck-suppress getgrnamCalled ; no other thread is there yet */
    if (d->socket_group && !getgrnam(d->socket_group))
        fail(l, place_of(&l->daemon, group), "socket_group: there is no group \"%s\"", d->socket_group);
    check_purpose(l);
}

/* ---- the whole ---- */

static void loader_deinit(struct loader *l) {
    for (size_t i = 0; i < l->file_count; i++)
        free(l->files[i]);
    free(l->files);
    free(l->daemon.keys);
    for (size_t i = 0; i < l->config->session_count; i++)
        free(l->sessions[i].keys);
    free(l->sessions);
    free(l->line);
}

struct nl_config *nl_config_load(const char *path, struct nl_config_report *report) {
    struct loader l = {.path = path, .config = nl_config_new(), .daemon = {.keys = new_places()}};
    struct nl_config *config = l.config;

    nl_buffer_init(&l.errors);
    nl_buffer_init(&l.warnings);
    load_file(&l, path);
    load_drop_ins(&l);
    check_daemon(&l);
    for (size_t i = 0; i < config->session_count; i++)
        check_session(&l, i);
    nl_config_complete(config);
    report->errors = nl_buffer_take_text(&l.errors);
    report->warnings = nl_buffer_take_text(&l.warnings);
    loader_deinit(&l);
    return report->errors ? nl_config_free(config) : config;
}
