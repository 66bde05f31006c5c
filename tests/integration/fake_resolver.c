/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A getaddrinfo() for tests, put before the C library's with LD_PRELOAD. Names that end in ".test" are looked
 * up in the file that FAKE_NAMES names, one a line, read anew while a call waits:
 *
 *   NAME ADDRESS [ADDRESS ...]   numeric ones, in the order of the answer
 *   NAME hang                    no answer until the line is another one
 *
 * A name that is not there does not exist. All other names go to the C library.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_AGAIN_US 10000

typedef int lookup(const char *, const char *, const struct addrinfo *, struct addrinfo **);

/* What stands behind the name, in line. */
static char *find(const char *name, char *line, size_t size) {
    const char *path = getenv("FAKE_NAMES");
    FILE *f = path == NULL ? NULL : fopen(path, "re");
    char *rest = NULL;

    while (f != NULL && rest == NULL && fgets(line, (int)size, f) != NULL) {
        char *word = strtok_r(line, " \n", &rest);

        if (word == NULL || strcmp(word, name) != 0)
            rest = NULL;
    }
    if (f != NULL)
        fclose(f);
    return rest;
}

static bool ends_with(const char *text, const char *end) {
    size_t len = strlen(text), n = strlen(end);

    return len >= n && strcmp(text + len - n, end) == 0;
}

/* One list of what each address by itself gives: the C library frees its entries one by one. */
static int all_of(lookup *real, char *addresses, const char *service, const struct addrinfo *hints,
                  struct addrinfo **out) {
    struct addrinfo numeric = hints == NULL ? (struct addrinfo){0} : *hints, **end = out;
    char *rest = NULL, *word;
    int error = EAI_NONAME;

    numeric.ai_flags |= AI_NUMERICHOST;
    *out = NULL;
    for (word = strtok_r(addresses, " \n", &rest); word != NULL; word = strtok_r(NULL, " \n", &rest)) {
        error = real(word, service, &numeric, end);
        if (error != 0)
            break;
        while (*end != NULL)
            end = &(*end)->ai_next;
    }
    return error;
}

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **out) {
    lookup *real = (lookup *)dlsym(RTLD_NEXT, "getaddrinfo");
    char line[512], *found;

    if (name == NULL || !ends_with(name, ".test"))
        return real(name, service, hints, out);
    while ((found = find(name, line, sizeof(line))) != NULL && strncmp(found, "hang", 4) == 0)
        usleep(LOOK_AGAIN_US);
    return found == NULL ? EAI_NONAME : all_of(real, found, service, hints, out);
}
