/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What nolagd tells systemd, and what it gets from it: sd_notify(3), sd_listen_fds(3),
 * sd_watchdog_enabled(3). All of it is harmless outside systemd.
 */
#ifndef NL_UTIL_NOTIFY_H
#define NL_UTIL_NOTIFY_H

#include <stdint.h>

void nl_notify_ready(const char *status);
void nl_notify_status(const char *status);
void nl_notify_stopping(uint64_t extend_usec); /* STOPPING=1, with EXTEND_TIMEOUT_USEC when not 0 */
void nl_notify_watchdog(void);

/* How often to call nl_notify_watchdog(), in ms: a third of WatchdogSec; 0 = no watchdog. */
uint64_t nl_notify_watchdog_interval(void);

/*
 * The listening Unix stream socket that systemd passed: its file descriptor (close-on-exec,
 * non-blocking), -ENOENT when none was passed, or -EINVAL when what was passed is
 * something else, or more than one; *why is then a static text.
 */
int nl_notify_listen_fd(const char **why);

#endif
