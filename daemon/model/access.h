/* SPDX-License-Identifier: Apache-2.0 */
/*
 * May this client do that? The one place where it is asked. Without access rules whoever
 * can open the socket may use every session; the tap belongs to root and to
 * the daemon's own user.
 */
#ifndef NL_MODEL_ACCESS_H
#define NL_MODEL_ACCESS_H

#include <stdbool.h>
#include <sys/types.h>

#include "protocol/buffer.h"

enum nl_right {
    NL_RIGHT_SESSION,   /* to be on this session at all */
    NL_RIGHT_SUBSCRIBE, /* topic */
    NL_RIGHT_PUBLISH,   /* topic */
    NL_RIGHT_PRESENCE,  /* to set, read and watch presence, of rooms and lobbies */
    NL_RIGHT_TAP,
};

struct nl_access {
    uid_t own_uid;
};

struct nl_access_question {
    uid_t uid;
    gid_t gid;
    const char *session; /* its name, or NULL for one opened by token */
    enum nl_right right;
    struct nl_slice topic; /* for rights about topics */
};

/* True when it is permitted; else *why is a static text for the hint. */
bool nl_access_permits(const struct nl_access *access, const struct nl_access_question *q, const char **why);

#endif
