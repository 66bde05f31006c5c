/* SPDX-License-Identifier: Apache-2.0 */
/* For tests that look at lines: the text of one, whether it shares its rest with others or not. */
#ifndef NL_TESTS_LINE_TEXT_H
#define NL_TESTS_LINE_TEXT_H

#include <stdio.h>
#include <string.h>

#include "protocol/alloc.h"
#include "protocol/line.h"

/* Writes what of the text fits (with its newline, NUL behind it) to to. Returns to. */
static inline char *nl_test_line_text(const struct nl_line *line, char *to, size_t cap) {
    const struct nl_line *rest = line->rest;

    snprintf(to, cap, "%.*s%.*s", (int)line->len, (const char *)line->bytes,
             rest == NULL ? 0 : (int)rest->len, rest == NULL ? "" : (const char *)rest->bytes);
    return to;
}

/* The same without the newline, for free(). */
static inline char *nl_test_line_dup(const struct nl_line *line) {
    size_t size = nl_line_size(line);
    char *text = nl_test_line_text(line, nl_calloc(1, size + 1), size + 1);

    text[size - 1] = '\0';
    return text;
}

#endif
