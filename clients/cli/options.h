/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line. Each verb has a table of its flags; the parser, the help text and the
 * answer to a misspelt flag are all made from it.
 */
#ifndef NOLAG_CLI_OPTIONS_H
#define NOLAG_CLI_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "clients/cli/outcome.h"

#define NOLAG_NO_HOST "-h is help; which broker is used is said in nolagd.conf"

struct nolag_list {
    const char **items; /* views into argv */
    size_t count;
};

/* What the command line said. Zero, NULL or -1 is: not given. */
struct nolag_options {
    struct nolag_list topics, filters;
    const char *message, *file;
    const char *format, *group, *ack, *session, *socket;
    bool null, stdin_whole, lines, jsonl, as_string, as_bytes, retain;
    bool verbose, no_newline, bytes, retry, only_subscribe;
    bool json, quiet, debug, exit_code, help;
    bool short_help;  /* help, asked for by -h: for users of mosquitto the flag before a host */
    int64_t qos;      /* -1: not given */
    int64_t count;    /* 0: no limit */
    int64_t prefetch; /* 0: not given */
    double timeout;   /* seconds; -1: not given */
    char **args;      /* what is left: NULL-terminated */
};

enum nolag_flag_kind {
    NOLAG_FLAG_BOOL,    /* bool */
    NOLAG_FLAG_TEXT,    /* const char *: once */
    NOLAG_FLAG_LIST,    /* struct nolag_list: may be repeated */
    NOLAG_FLAG_INTEGER, /* int64_t, from min to max */
    NOLAG_FLAG_SECONDS, /* double, above 0 */
};

struct nolag_flag {
    char letter;      /* 0: no short form */
    const char *name; /* NULL ends a table */
    const char *arg;  /* what the help calls its argument; NULL for a NOLAG_FLAG_BOOL */
    const char *help;
    enum nolag_flag_kind kind;
    size_t offset; /* in struct nolag_options */
    int64_t min, max;
};

struct nolag_verb {
    const char *name;
    const char *summary;
    const char *usage; /* what follows "nolag NAME" in the usage line */
    const char *notes; /* the end of its help */
    enum nolag_exit (*run)(const struct nolag_options *o);
    const struct nolag_flag *flags;
    bool takes_args; /* arguments other than flags */
};

/*
 * Parses what follows the verb: argv[0] is the verb. NOLAG_USAGE after a message, else
 * NOLAG_OK. Free with nolag_options_deinit() in both cases.
 */
enum nolag_exit nolag_options_parse(struct nolag_options *o, const struct nolag_verb *verb, int argc,
                                    char **argv);
void nolag_options_deinit(struct nolag_options *o);

/* Writes the verb's help to stdout. */
void nolag_options_help(const struct nolag_verb *verb);

/* Reports that the verb was used wrongly, with its usage line. Returns NOLAG_USAGE. */
enum nolag_exit nolag_options_misused(const struct nolag_verb *verb, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* How many single-character edits lead from a to b: small numbers are likely slips of the finger. */
size_t nolag_distance(const char *a, const char *b);

#endif
