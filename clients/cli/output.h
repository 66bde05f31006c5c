/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stdout, for what is wanted as a result. Each piece is written by itself and at once, so
 * that a reader gets it without delay and several writers to one log do not mix within a
 * line. When the reader is gone the process ends as SIGPIPE ends it: without a word.
 */
#ifndef NOLAG_CLI_OUTPUT_H
#define NOLAG_CLI_OUTPUT_H

#include <stdbool.h>

#include "clients/cli/outcome.h"
#include "protocol/buffer.h"

/* Call first: gives SIGPIPE its meaning back, and keeps sockets off the numbers 0 to 2. */
void nolag_output_prepare(void);

/* Writes all of it. NOLAG_FAILED after a message when it cannot. */
enum nolag_exit nolag_output(struct nl_slice bytes);
enum nolag_exit nolag_output_line(struct nl_slice text); /* adds the newline */

/* Ends the process as SIGPIPE does. */
void nolag_output_gone(void) __attribute__((noreturn));

#endif
