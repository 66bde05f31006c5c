/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One request, its answer, and the events that follow it as long as the client stays: what the verbs about
 * presence have in common. It ends when enough events were seen (-C), the time is over (-W), nolagd goes
 * away, or what was asked for is refused, now or later.
 */
#ifndef NOLAG_CLI_TALK_H
#define NOLAG_CLI_TALK_H

#include "clients/cli/connection.h"
#include "clients/cli/options.h"

struct nolag_talk {
    const struct nolag_options *o;
    bool stays;        /* goes on after the answer */
    const char *event; /* the type of the events that on_event gets; NULL = none */
    /* Show it. Anything but NOLAG_OK ends the talk. May be NULL. */
    enum nolag_exit (*on_answer)(const struct nolag_options *o, const struct nolag_event *e);
    enum nolag_exit (*on_event)(const struct nolag_options *o, const struct nolag_event *e);

    /* Its own. */
    struct nolag_connection c;
    bool answered, over;
    int64_t seen;
    enum nolag_exit code;
};

/* request is a whole line with the id 1, its newline included. What went wrong is reported. */
enum nolag_exit nolag_talk(struct nolag_talk *t, struct nl_slice request);

#endif
