/* SPDX-License-Identifier: Apache-2.0 */
/* Memory that never fails to come: see alloc.h for the policy. */
#include "protocol/alloc.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* No exit handlers and no core: neither would find memory, and a core holds tokens. */
_Noreturn void nl_out_of_memory(size_t size) {
    fprintf(stderr, "%s: out of memory (%zu bytes)\n", program_invocation_short_name, size);
    _exit(EXIT_FAILURE);
}

void *nl_malloc(size_t size) {
    void *ptr = malloc(size ? size : 1);
    if (!ptr)
        nl_out_of_memory(size);
    return ptr;
}

void *nl_calloc(size_t count, size_t size) {
    void *ptr = calloc(count ? count : 1, size ? size : 1);
    if (!ptr)
        nl_out_of_memory(size);
    return ptr;
}

void *nl_realloc(void *ptr, size_t size) {
    void *moved = realloc(ptr, size ? size : 1);
    if (!moved)
        nl_out_of_memory(size);
    return moved;
}

char *nl_strndup(const char *s, size_t len) {
    char *copy = nl_malloc(len + 1);
    if (len)
        memcpy(copy, s, len);
    copy[len] = '\0';
    return copy;
}

char *nl_strdup(const char *s) {
    return nl_strndup(s, strlen(s));
}
