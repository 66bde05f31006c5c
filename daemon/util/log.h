/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log: one line per entry on stderr. When stderr is the journal (JOURNAL_STREAM) each
 * line starts with its priority "<N>" (sd-daemon(3)); elsewhere with time and level.
 * Never a token, and no payload above debug. Control characters in texts are escaped, so that
 * nobody can forge a line.
 */
#ifndef NL_UTIL_LOG_H
#define NL_UTIL_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum nl_log_level { NL_LOG_ERROR, NL_LOG_WARNING, NL_LOG_NOTICE, NL_LOG_INFO, NL_LOG_DEBUG };

/* "error" ... "debug"; false when it is none of them. */
bool nl_log_level_parse(const char *name, enum nl_log_level *level);

void nl_log_init(enum nl_log_level level);
void nl_log_set_level(enum nl_log_level level);
bool nl_log_enabled(enum nl_log_level level);

void nl_log(enum nl_log_level level, const char *format, ...) __attribute__((format(printf, 2, 3)));

#define nl_log_error(...) nl_log(NL_LOG_ERROR, __VA_ARGS__)
#define nl_log_warning(...) nl_log(NL_LOG_WARNING, __VA_ARGS__)
#define nl_log_notice(...) nl_log(NL_LOG_NOTICE, __VA_ARGS__)
#define nl_log_info(...) nl_log(NL_LOG_INFO, __VA_ARGS__)
#define nl_log_debug(...)                                                                                    \
    do {                                                                                                     \
        if (nl_log_enabled(NL_LOG_DEBUG))                                                                    \
            nl_log(NL_LOG_DEBUG, __VA_ARGS__);                                                               \
    } while (0)

/*
 * A budget for log lines about one object (a client, say): at most burst lines, one more every
 * interval_ms. Returns true when the line may be written; *suppressed then is how
 * many were not since the last one.
 */
struct nl_log_budget {
    uint64_t next_ms;
    uint32_t suppressed;
    uint32_t left;
};
bool nl_log_budget_take(struct nl_log_budget *b, uint64_t now_ms, uint32_t burst, uint64_t interval_ms,
                        uint32_t *suppressed);

#endif
