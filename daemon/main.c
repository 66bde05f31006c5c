/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nolagd: reads the configuration, wires the parts together and runs the loop.
 */
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <uv.h>

#include "daemon/config.h"
#include "daemon/io/server.h"
#include "daemon/util/log.h"
#include "daemon/util/notify.h"
#include "daemon/version.h"
#include "protocol/alloc.h"

#define DEFAULT_CONFIG "/etc/nolagd/nolagd.conf"

struct options {
    const char *config, *socket, *log_level;
    bool check;
};

static const char usage[] =
    "usage: nolagd [--config FILE] [--socket PATH] [--log-level LEVEL] [--check-config]\n"
    "\n"
    "Holds one session per actor token with the NoLag broker and shares it with local\n"
    "programs over a Unix socket. Runs in the foreground and logs to standard error.\n"
    "\n"
    "  --config FILE      configuration (" DEFAULT_CONFIG ")\n"
    "  --socket PATH      listen here instead of where the configuration says\n"
    "  --log-level LEVEL  error, warning, notice, info or debug\n"
    "  --check-config     read the configuration, say what is wrong, and exit\n"
    "  --version          print the version and exit\n"
    "  --help             print this and exit\n";

/* Returns -1 to go on, else the exit status. */
static int parse_options(int argc, char **argv, struct options *o) {
    static const struct option longs[] = {
        {"config", required_argument, NULL, 'c'},
        {"socket", required_argument, NULL, 's'},
        {"log-level", required_argument, NULL, 'l'},
        {"check-config", no_argument, NULL, 'k'},
        {"version", no_argument, NULL, 'V'},
        {"help", no_argument, NULL, 'h'},
        {NULL, 0, NULL, 0},
    };
    int opt;

    *o = (struct options){.config = DEFAULT_CONFIG};
    while ((opt = getopt_long(argc, argv, "c:s:l:hV", longs, NULL)) != -1) {
        switch (opt) {
        case 'c':
            o->config = optarg;
            break;
        case 's':
            o->socket = optarg;
            break;
        case 'l':
            o->log_level = optarg;
            break;
        case 'k':
            o->check = true;
            break;
        case 'V':
            printf("nolagd %s\n", NL_VERSION);
            return 0;
        case 'h':
            fputs(usage, stdout);
            return 0;
        default:
            fputs(usage, stderr);
            return 2;
        }
    }
    if (optind == argc)
        return -1;
    fprintf(stderr, "nolagd: what is \"%s\" for?\n%s", argv[optind], usage);
    return 2;
}

/* Logs each line of text. */
static void log_lines(enum nl_log_level level, char *text) {
    char *rest = text;
    char *line;

    while ((line = strsep(&rest, "\n")) != NULL)
        if (*line != '\0')
            nl_log(level, "%s", line);
    free(text);
}

static struct nl_config *load(const struct options *o) {
    struct nl_config_report report = {0};
    struct nl_config *config = nl_config_load(o->config, &report);

    if (config == NULL)
        nl_notify_status("the configuration has errors; see the log");
    log_lines(NL_LOG_ERROR, report.errors);
    log_lines(NL_LOG_WARNING, report.warnings);
    if (config == NULL)
        return NULL;
    if (o->socket != NULL) {
        free(config->daemon.socket);
        config->daemon.socket = nl_strdup(o->socket);
    }
    return config;
}

/* The configuration's level holds unless the command line says one. */
static int set_log_level(const char *name) {
    enum nl_log_level level;

    if (name == NULL)
        return 0;
    if (!nl_log_level_parse(name, &level)) {
        fprintf(stderr, "nolagd: log level \"%s\": use error, warning, notice, info or debug\n", name);
        return -1;
    }
    nl_log_set_level(level);
    return 0;
}

static void on_stop_signal(uv_signal_t *handle, int number) {
    (void)number;
    nl_server_stop(handle->data);
}

/* Daemons usually read their configuration again then: who expects that is told, and nobody is cut off. */
static void on_hangup_signal(uv_signal_t *handle, int number) {
    (void)handle;
    (void)number;
    nl_log_warning("SIGHUP is ignored: a changed configuration takes effect at a restart");
}

static const struct {
    int number;
    uv_signal_cb handler;
} watched[] = {{SIGTERM, on_stop_signal}, {SIGINT, on_stop_signal}, {SIGHUP, on_hangup_signal}};

enum { WATCHED = sizeof(watched) / sizeof(watched[0]) };

struct signals {
    uv_signal_t handles[WATCHED];
    size_t count; /* that are initialised */
};

/* Signals must not keep the loop alive once everything else has ended. */
static int watch_signals(struct signals *s, uv_loop_t *loop, struct nl_server *server) {
    int error = 0;

    s->count = 0;
    while (error == 0 && s->count < WATCHED) {
        uv_signal_t *handle = &s->handles[s->count];

        error = uv_signal_init(loop, handle);
        if (error < 0)
            break;
        handle->data = server;
        error = uv_signal_start(handle, watched[s->count].handler, watched[s->count].number);
        uv_unref((uv_handle_t *)handle);
        s->count++;
    }
    if (error < 0)
        nl_log_error("signals: %s", uv_strerror(error));
    return error;
}

static void forget_signals(struct signals *s) {
    for (size_t i = 0; i < s->count; i++) {
        uv_close((uv_handle_t *)&s->handles[i], NULL);
        signal(watched[i].number, SIG_IGN); /* we are on our way out */
    }
}

/* Whoever is told that we are ready may stop us: signals come first. */
static int run(struct nl_server *server, uv_loop_t *loop, const struct nl_config *config) {
    struct signals signals;
    int error = watch_signals(&signals, loop, server);

    if (error == 0)
        error = nl_server_start(server, loop, config);
    if (error == 0)
        uv_run(loop, UV_RUN_DEFAULT);
    forget_signals(&signals);
    uv_run(loop, UV_RUN_DEFAULT);
    return error;
}

/* Runs the daemon on its loop; returns the exit status. */
static int serve(const struct nl_config *config) {
    struct nl_server server = {0};
    uv_loop_t loop;
    int error = uv_loop_init(&loop);

    if (error < 0) {
        nl_log_error("event loop: %s", uv_strerror(error));
        return EXIT_FAILURE;
    }
    error = run(&server, &loop, config);
    nl_server_deinit(&server);
    if (uv_loop_close(&loop) != 0)
        nl_log_error("the loop was left with open handles");
    return error == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

/*
 * Before anything else: a client that goes away while we write, or a SIGHUP before we watch for it, must not
 * end us; tokens must not reach a core file or another process of our user.
 */
static void prepare_process(void) {
    signal(SIGPIPE, SIG_IGN);
    signal(SIGHUP, SIG_IGN);
    prctl(PR_SET_DUMPABLE, 0);
}

int main(int argc, char **argv) {
    struct options options;
    struct nl_config *config;
    int status = parse_options(argc, argv, &options);

    if (status >= 0)
        return status;
    prepare_process();
    nl_log_init(NL_LOG_INFO);
    config = load(&options);
    if (config == NULL)
        return EXIT_FAILURE;
    if (set_log_level(config->daemon.log_level) < 0 || set_log_level(options.log_level) < 0)
        status = 2;
    else
        status = options.check ? EXIT_SUCCESS : serve(config);
    nl_config_free(config);
    return status;
}
