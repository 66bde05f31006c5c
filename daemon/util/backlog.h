/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whether somebody who has more waiting than a limit is too slow, or only had much come at once. One burst
 * says nothing about its reader, so being over the limit begins periods: by the end of the first something
 * must have been taken, and from then on each must leave less waiting than the one before. Who reads gets
 * down to the limit that way; who does not, or not as fast as more comes, is found out within two periods.
 */
#ifndef NL_UTIL_BACKLOG_H
#define NL_UTIL_BACKLOG_H

#include <stdbool.h>
#include <stdint.h>

#define NL_BACKLOG_PERIOD_MS 1000
/* With NL_BACKLOG_FACTOR times the limit waiting the periods are short, so that memory stays near it. */
#define NL_BACKLOG_FACTOR 4
#define NL_BACKLOG_SHORT_MS 100

struct nl_backlog { /* all zero to begin with */
    bool over;
    uint64_t since_ms; /* the period began */
    uint64_t before;   /* bytes that waited then; UINT64_MAX in the first period */
    uint64_t taken;    /* bytes since then */
};

/* So many bytes were taken. */
void nl_backlog_taken(struct nl_backlog *b, uint64_t bytes);

/* So many bytes wait now. True at the end of a period in which too little was taken. */
bool nl_backlog_too_slow(struct nl_backlog *b, uint64_t bytes, uint64_t limit, uint64_t now_ms);

#endif
