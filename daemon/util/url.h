/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The address of a broker: ws:// or wss://, a host, and what may follow.
 */
#ifndef NL_UTIL_URL_H
#define NL_UTIL_URL_H

#include <stdbool.h>
#include <stdint.h>

/*
 * Splits a url into parts for a link. Returns false, with both strings NULL, when it is not ws:// or wss://
 * with a host, or has user information or a fragment. host has no brackets for IPv6 literals; path includes
 * the query and is at least "/". Both strings are for free().
 */
bool nl_url_parse(const char *url, bool *tls, char **host, uint16_t *port, char **path);

#endif
