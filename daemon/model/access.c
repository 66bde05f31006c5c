/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/access.h"

bool nl_access_permits(const struct nl_access *access, const struct nl_access_question *q, const char **why) {
    if (q->uid == 0 || q->uid == access->own_uid)
        return true;
    switch (q->right) {
    case NL_RIGHT_SESSION:
    case NL_RIGHT_SUBSCRIBE:
    case NL_RIGHT_PUBLISH:
    case NL_RIGHT_PRESENCE:
        return true;
    case NL_RIGHT_TAP:
        *why = "the tap belongs to root and to the daemon's own user";
        return false;
    }
    return false;
}
