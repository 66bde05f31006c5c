/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From a line of a client to the handler of its request type.
 */
#ifndef NL_IO_DISPATCH_H
#define NL_IO_DISPATCH_H

#include "daemon/io/client.h"
#include "protocol/buffer.h"

struct nl_upstream;

/* Handles one line. */
void nl_dispatch_line(struct nl_client *c, struct nl_slice text);

/* The line was longer than the limit. */
void nl_dispatch_too_long(struct nl_client *c);

/* Answers an auth that waited for upstream's first outcome: NL_OK, or why the client is on no session now. */
void nl_dispatch_auth_outcome(struct nl_client *c, struct nl_upstream *upstream, enum nl_error error);

#endif
