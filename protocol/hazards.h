/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What in a packed payload some brokers cannot carry: the open-source one (kraken) closes the sender's
 * connection with code 1011 for any of it. The vendor's cloud is not known to.
 */
#ifndef NL_PROTOCOL_HAZARDS_H
#define NL_PROTOCOL_HAZARDS_H

#include "protocol/buffer.h"

enum nl_hazard {
    NL_HAZARD_BYTES = 1,        /* a bin or str that is not UTF-8 */
    NL_HAZARD_FLOAT_KEY = 2,    /* {1.5: ...} */
    NL_HAZARD_COMPOUND_KEY = 4, /* an array or map as a key */
};

/* The set of enum nl_hazard in the one value in packed, which must have passed nl_scan(). */
unsigned nl_hazards(struct nl_slice packed);

#endif
