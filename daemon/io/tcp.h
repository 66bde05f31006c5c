/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel knows of a TCP connection's outgoing side. */
#ifndef NL_IO_TCP_H
#define NL_IO_TCP_H

#include <stdbool.h>
#include <stdint.h>

/*
 * How many bytes written to fd have arrived at the peer's kernel, and how many have not yet. Returns false
 * when fd is no connected TCP socket.
 */
bool nl_tcp_arrived(int fd, uint64_t *arrived, uint64_t *on_their_way);

#endif
