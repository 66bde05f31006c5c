/* SPDX-License-Identifier: Apache-2.0 */
/* nolag: the command line of nolagd. This file knows the verbs; each verb knows its flags. */
#include <stdio.h>
#include <string.h>

#include "clients/cli/output.h"
#include "clients/cli/verbs.h"

static const struct nolag_verb *const verbs[] = {
    &nolag_verb_sub,   &nolag_verb_pub,    &nolag_verb_presence,
    &nolag_verb_lobby, &nolag_verb_status, &nolag_verb_sessions,
    &nolag_verb_ping,  &nolag_verb_raw,    NULL,
};

static void show_help(void) {
    printf("usage: nolag VERB [flags]\n\n");
    for (const struct nolag_verb *const *v = verbs; *v; v++)
        printf("  %-10s %s\n", (*v)->name, (*v)->summary);
    printf("\nnolag VERB --help tells the flags of a verb; nolag --version the version.\n"
           "The socket of nolagd is " NOLAG_SOCKET
           ", or what NOLAGD_SOCKET or --socket says.\n\nExit codes:\n");
#define X(name, code, text) printf("  %-3d %s\n", code, text);
    NOLAG_EXITS(X)
#undef X
}

static const struct nolag_verb *find(const char *name) {
    for (const struct nolag_verb *const *v = verbs; *v; v++)
        if (strcmp((*v)->name, name) == 0)
            return *v;
    return NULL;
}

/* "subscribe" and "publish" begin with what is meant. */
static const struct nolag_verb *find_beginning(const char *name) {
    for (const struct nolag_verb *const *v = verbs; *v; v++)
        if (strncmp(name, (*v)->name, strlen((*v)->name)) == 0)
            return *v;
    return NULL;
}

static const struct nolag_verb *nearest(const char *name) {
    const struct nolag_verb *best = &nolag_verb_sub;

    for (const struct nolag_verb *const *v = verbs; *v; v++)
        if (nolag_distance(name, (*v)->name) < nolag_distance(name, best->name))
            best = *v;
    return nolag_distance(name, best->name) <= 2 ? best : find_beginning(name);
}

static enum nolag_exit refuse(const char *name) {
    const struct nolag_verb *meant = nearest(name);

    if (*name == '-')
        /* Not with its value: people try --token=... */
        nolag_say("flags come behind the verb, as in nolag sub %.*s", (int)strcspn(name, "="), name);
    else if (meant)
        nolag_say("there is no verb \"%s\"; did you mean %s?", name, meant->name);
    else
        nolag_say("there is no verb \"%s\"; nolag --help lists them", name);
    return NOLAG_USAGE;
}

static enum nolag_exit run(const struct nolag_verb *verb, int argc, char **argv) {
    struct nolag_options options;
    enum nolag_exit code = nolag_options_parse(&options, verb, argc, argv);

    if (code == NOLAG_OK && options.help)
        nolag_options_help(verb);
    else if (code == NOLAG_OK)
        code = verb->run(&options);
    nolag_options_deinit(&options);
    return code;
}

static enum nolag_exit dispatch(int argc, char **argv) {
    const struct nolag_verb *verb;

    if (argc < 2) {
        nolag_say("what to do? nolag --help lists the verbs");
        return NOLAG_USAGE;
    }
    if (strcmp(argv[1], "--version") == 0) {
        printf("nolag " NOLAG_VERSION "\n");
        return NOLAG_OK;
    }
    if (strcmp(argv[1], "-h") == 0 && argc > 2) {
        nolag_say("unexpected argument \"%s\": " NOLAG_NO_HOST, argv[2]);
        return NOLAG_USAGE;
    }
    if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "help") == 0) {
        show_help();
        return NOLAG_OK;
    }
    verb = find(argv[1]);
    return verb ? run(verb, argc - 1, argv + 1) : refuse(argv[1]);
}

int main(int argc, char **argv) {
    enum nolag_exit code;

    nolag_output_prepare();
    code = dispatch(argc, argv);
    /* Help and tables go through stdio: a full disk must not look like success. */
    if (fflush(stdout) != 0 || ferror(stdout)) {
        nolag_say("cannot write to stdout");
        return code == NOLAG_OK ? NOLAG_FAILED : code;
    }
    return code;
}
