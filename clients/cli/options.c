/* SPDX-License-Identifier: Apache-2.0 */
/* getopt_long() from the tables of the verbs, and what to say when the command line is wrong. */
#include "clients/cli/options.h"

#include <errno.h>
#include <getopt.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clients/cli/connection.h"
#include "protocol/alloc.h"

#define FIRST_LONG 256 /* getopt_long() gives flag number i as FIRST_LONG + i */
#define FLAGS_MAX 32
#define NEAR 2 /* edits within which a name is worth suggesting */

static const struct nolag_flag common[] = {
    {0, "socket", "PATH", "nolagd's socket, before NOLAGD_SOCKET and " NOLAG_SOCKET, NOLAG_FLAG_TEXT,
     offsetof(struct nolag_options, socket)},
    {'h', "help", NULL, "this help", NOLAG_FLAG_BOOL, offsetof(struct nolag_options, help)},
    {0},
};

/* Flag number i: a verb's own ones, then those of every verb; the last one has no name. */
static const struct nolag_flag *flag_at(const struct nolag_verb *verb, size_t i) {
    size_t own = 0;

    while (verb->flags[own].name)
        own++;
    return i < own ? &verb->flags[i] : &common[i - own];
}

enum nolag_exit nolag_options_misused(const struct nolag_verb *verb, const char *format, ...) {
    char problem[512];
    va_list args;

    va_start(args, format);
    vsnprintf(problem, sizeof problem, format, args);
    va_end(args);
    nolag_say("%s: %s", verb->name, problem);
    fprintf(stderr, "usage: nolag %s %s\n       nolag %s --help explains the flags\n", verb->name,
            verb->usage, verb->name);
    return NOLAG_USAGE;
}

/* Levenshtein's, on the first characters of both; one row at a time. */
size_t nolag_distance(const char *a, const char *b) {
    size_t row[32], la = strnlen(a, 31), lb = strnlen(b, 31);

    for (size_t j = 0; j <= lb; j++)
        row[j] = j;
    for (size_t i = 1; i <= la; i++) {
        size_t diagonal = row[0];

        row[0] = i;
        for (size_t j = 1; j <= lb; j++) {
            size_t best = diagonal + (a[i - 1] != b[j - 1]);

            diagonal = row[j];
            best = best < row[j] + 1 ? best : row[j] + 1;
            row[j] = best < row[j - 1] + 1 ? best : row[j - 1] + 1;
        }
    }
    return row[lb];
}

static const struct nolag_flag *nearest(const struct nolag_verb *verb, const char *name) {
    const struct nolag_flag *best = NULL;
    size_t best_distance = NEAR + 1;

    for (size_t i = 0; flag_at(verb, i)->name; i++) {
        const struct nolag_flag *f = flag_at(verb, i);
        size_t distance = nolag_distance(name, f->name);

        if (distance < best_distance) {
            best = f;
            best_distance = distance;
        }
    }
    return best;
}

static enum nolag_exit unknown_flag(const struct nolag_verb *verb, const char *given) {
    const char *name = given + strspn(given, "-");
    char bare[32];
    const struct nolag_flag *near_flag;

    snprintf(bare, sizeof bare, "%.*s", (int)strcspn(name, "="), name);
    near_flag = given[0] == '-' && given[1] == '-' ? nearest(verb, bare) : NULL;
    if (near_flag && strcmp(near_flag->name, bare) == 0)
        return nolag_options_misused(verb, "--%s takes no argument", bare);
    if (near_flag)
        return nolag_options_misused(verb, "unknown flag --%s; did you mean --%s?", bare, near_flag->name);
    /* Not with its value: people try --token=... */
    return nolag_options_misused(verb, "unknown flag %.*s", (int)strcspn(given, "="), given);
}

/* getopt_long() does not say which one it was: a letter, or the whole word before optind. */
static enum nolag_exit refuse_flag(const struct nolag_verb *verb, char **argv) {
    char letter[3] = {'-', (char)optopt, '\0'};

    return unknown_flag(verb, optopt > 0 && optopt < FIRST_LONG ? letter : argv[optind - 1]);
}

static void list_add(struct nolag_list *list, const char *item) {
    list->items = nl_realloc(list->items, (list->count + 1) * sizeof *list->items);
    list->items[list->count++] = item;
}

static bool read_integer(const struct nolag_flag *f, const char *text, int64_t *out) {
    char *end;
    long long value;

    errno = 0;
    value = strtoll(text, &end, 10);
    if (errno || end == text || *end || value < f->min || value > f->max)
        return false;
    *out = value;
    return true;
}

static bool read_seconds(const char *text, double *out) {
    char *end;
    double value = strtod(text, &end);

    /* The bound keeps milliseconds far from the end of an int64_t. */
    if (end == text || *end || !isfinite(value) || value <= 0 || value > 1e9)
        return false;
    *out = value;
    return true;
}

static bool set_text(const char **at, const char *arg) {
    bool first = !*at;

    *at = arg;
    return first;
}

/* False when arg is no value for f, or a second text where the first one would be lost. */
static bool set(struct nolag_options *o, const struct nolag_flag *f, const char *arg) {
    char *at = (char *)o + f->offset;
    bool given = true;

    switch (f->kind) {
    case NOLAG_FLAG_BOOL:
        memcpy(at, &given, sizeof given);
        return true;
    case NOLAG_FLAG_TEXT:
        return set_text((const char **)(void *)at, arg);
    case NOLAG_FLAG_LIST:
        list_add((struct nolag_list *)(void *)at, arg);
        return true;
    case NOLAG_FLAG_INTEGER:
        return read_integer(f, arg, (int64_t *)(void *)at);
    case NOLAG_FLAG_SECONDS:
        return read_seconds(arg, (double *)(void *)at);
    }
    return false;
}

/* The same table in the two forms that getopt_long() wants. */
static void translate(const struct nolag_verb *verb, char *letters, struct option *longs) {
    int i;

    *letters++ = ':'; /* tell a missing argument from an unknown flag */
    for (i = 0; i < FLAGS_MAX && flag_at(verb, (size_t)i)->name; i++) {
        const struct nolag_flag *f = flag_at(verb, (size_t)i);

        longs[i] = (struct option){f->name, f->arg ? required_argument : no_argument, NULL, FIRST_LONG + i};
        if (!f->letter)
            continue;
        *letters++ = f->letter;
        if (f->arg)
            *letters++ = ':';
    }
    longs[i] = (struct option){0};
    *letters = '\0';
}

static const struct nolag_flag *find(const struct nolag_verb *verb, int result) {
    if (result >= FIRST_LONG)
        return flag_at(verb, (size_t)(result - FIRST_LONG));
    for (size_t i = 0; flag_at(verb, i)->name; i++)
        if (flag_at(verb, i)->letter == result)
            return flag_at(verb, i);
    return NULL;
}

/* What a value has to be, for who gave another one. */
static void say_range(char *text, size_t size, const struct nolag_flag *f) {
    if (f->kind == NOLAG_FLAG_SECONDS)
        snprintf(text, size, "a number above 0, such as 0.5");
    else if (f->max == INT64_MAX)
        snprintf(text, size, "a whole number, at least %lld", (long long)f->min);
    else
        snprintf(text, size, "a whole number from %lld to %lld", (long long)f->min, (long long)f->max);
}

static enum nolag_exit refuse_value(const struct nolag_verb *verb, const struct nolag_flag *f,
                                    const char *value) {
    char range[80];

    if (f->kind == NOLAG_FLAG_TEXT)
        return nolag_options_misused(verb, "--%s is given twice; it takes one %s", f->name, f->arg);
    say_range(range, sizeof range, f);
    return nolag_options_misused(verb, "\"%s\" is no %s for --%s: %s", value, f->arg, f->name, range);
}

static enum nolag_exit take_flag(struct nolag_options *o, const struct nolag_verb *verb, int result,
                                 char **argv) {
    const struct nolag_flag *f = find(verb, result == ':' ? optopt : result);

    if (!f)
        return refuse_flag(verb, argv);
    if (result == ':')
        return nolag_options_misused(verb, "--%s needs its %s", f->name, f->arg);
    if (!set(o, f, optarg))
        return refuse_value(verb, f, optarg);
    o->short_help = o->short_help || result == 'h';
    return NOLAG_OK;
}

static enum nolag_exit refuse_argument(const struct nolag_options *o, const struct nolag_verb *verb) {
    const char *arg = *o->args;

    if (o->short_help)
        return nolag_options_misused(verb, "unexpected argument \"%s\": " NOLAG_NO_HOST, arg);
    if (o->stdin_whole)
        return nolag_options_misused(
            verb, "unexpected argument \"%s\": -s is all of stdin; a session is --session", arg);
    if (verb->flags[0].letter == 't' && o->topics.count == 0)
        return nolag_options_misused(verb, "unexpected argument \"%s\"; did you mean -t %s?", arg, arg);
    return nolag_options_misused(verb, "unexpected argument \"%s\"; a value with blanks in it needs quotes",
                                 arg);
}

/*
 * Arguments where there should be none. Not when --help is asked for; but who writes -h HOST does not ask
 * for help, and must not get it on stdout in place of messages.
 */
static bool has_stray_argument(const struct nolag_options *o, const struct nolag_verb *verb) {
    return *o->args && (o->short_help || (!o->help && !verb->takes_args));
}

enum nolag_exit nolag_options_parse(struct nolag_options *o, const struct nolag_verb *verb, int argc,
                                    char **argv) {
    char letters[2 * FLAGS_MAX + 2];
    struct option longs[FLAGS_MAX + 1];
    enum nolag_exit code = NOLAG_OK;
    int result;

    *o = (struct nolag_options){.qos = -1, .timeout = -1};
    translate(verb, letters, longs);
    opterr = 0;
    while (code == NOLAG_OK && (result = getopt_long(argc, argv, letters, longs, NULL)) != -1)
        code = take_flag(o, verb, result, argv);
    o->args = argv + optind;
    if (code == NOLAG_OK && has_stray_argument(o, verb))
        code = refuse_argument(o, verb);
    return code;
}

void nolag_options_deinit(struct nolag_options *o) {
    free(o->topics.items);
    free(o->filters.items);
}

void nolag_options_help(const struct nolag_verb *verb) {
    printf("usage: nolag %s %s\n\n%s\n\n", verb->name, verb->usage, verb->summary);
    for (size_t i = 0; flag_at(verb, i)->name; i++) {
        const struct nolag_flag *f = flag_at(verb, i);
        char left[64];

        snprintf(left, sizeof left, "%c%c%s --%s%s%s", f->letter ? '-' : ' ', f->letter ? f->letter : ' ',
                 f->letter ? "," : " ", f->name, f->arg ? " " : "", f->arg ? f->arg : "");
        printf("  %-24s %s\n", left, f->help);
    }
    if (*verb->notes)
        printf("\n%s", verb->notes);
}
