/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How `nolag sub` shows a message. By default the payload alone: the text of a string,
 * compact JSON for anything else, and a newline.
 */
#ifndef NOLAG_CLI_FORMAT_H
#define NOLAG_CLI_FORMAT_H

#include "clients/cli/options.h"

/* What -F knows. X("letter", what it stands for) */
#define NOLAG_FORMATS(X)                                                                                     \
    X("t", "topic")                                                                                          \
    X("p", "payload")                                                                                        \
    X("l", "length of the payload as shown, in bytes")                                                       \
    X("x", "payload in hexadecimal")                                                                         \
    X("j", "the whole event as JSON")                                                                        \
    X("f", "filter that the message was published with; several as a|b")                                     \
    X("i", "msgId")                                                                                          \
    X("F", "from: the sender")                                                                               \
    X("U", "time of arrival, in Unix seconds")                                                               \
    X("I", "time of arrival, ISO 8601")                                                                      \
    X("%", "a percent sign")

/* Looks at -F before the first message: where it has a % or a backslash with an unknown letter, or NULL. */
const char *nolag_format_unknown(const char *format);

/*
 * Appends the message as the options ask for, its newline included. On a terminal,
 * control characters in what others sent are shown as '?'.
 */
void nolag_format(struct nl_buffer *out, const struct nolag_event *e, const struct nolag_options *o,
                  bool terminal);

#endif
