/* SPDX-License-Identifier: Apache-2.0 */
#include "clients/cli/diagnosis.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "clients/cli/connection.h"

static const char *user_name(uid_t uid) {
    /* cppcheck-suppress getpwuidCalled ; there is one thread */
    const struct passwd *user = getpwuid(uid);

    return user ? user->pw_name : "$USER";
}

/* True when the group database has this user in that group: then only a new login is missing. */
static bool is_listed(const struct group *group) {
    const char *name = user_name(geteuid());

    for (char **member = group->gr_mem; *member; member++)
        if (strcmp(*member, name) == 0)
            return true;
    return false;
}

static bool has_group(gid_t gid) {
    gid_t groups[1024];
    int count = getgroups(1024, groups);

    for (int i = 0; i < count; i++)
        if (groups[i] == gid)
            return true;
    return getegid() == gid;
}

static void advise_group(char *advice, size_t size, gid_t gid) {
    /* cppcheck-suppress getgrgidCalled ; there is one thread */
    const struct group *group = getgrgid(gid);

    if (!group)
        snprintf(advice, size, "only the group %u, which has no name, may use it", (unsigned)gid);
    else if (is_listed(group))
        snprintf(advice, size,
                 "you were added to the group \"%s\" after this login: log out and in again (or: newgrp %s)",
                 group->gr_name, group->gr_name);
    else
        snprintf(advice, size,
                 "you are not in the group \"%s\" that owns it: sudo usermod -aG %s %s, then log in again",
                 group->gr_name, group->gr_name, user_name(geteuid()));
}

static void advise_denied(char *advice, size_t size, const char *path) {
    struct stat st;

    if (stat(path, &st) < 0)
        snprintf(advice, size, "you may not enter a folder of this path");
    else if (st.st_gid == 0)
        snprintf(advice, size,
                 "it belongs to the group of root: see SocketGroup= in nolagd.socket, or without systemd "
                 "socket_group in nolagd.conf");
    else if (!(st.st_mode & S_IWGRP) || has_group(st.st_gid))
        snprintf(advice, size, "only \"%s\" may use it (mode %04o)", user_name(st.st_uid),
                 (unsigned)(st.st_mode & 07777));
    else
        advise_group(advice, size, st.st_gid);
}

static bool is_no_socket(const char *path) {
    struct stat st;

    return stat(path, &st) == 0 && !S_ISSOCK(st.st_mode);
}

static const char *reason(int error) {
    switch (error) {
    case EACCES:
    case EPERM:
        return "permission denied";
    case ENOENT:
        return "there is no such socket";
    case ECONNREFUSED:
        return "nothing listens there";
    case ETIMEDOUT:
        return "nolagd does not take new connections";
    default:
        return strerror(error);
    }
}

void nolag_say_unreachable(const char *path, int error) {
    char advice[512] = "is nolagd running? systemctl status nolagd.socket nolagd.service";

    if (error == EACCES || error == EPERM)
        advise_denied(advice, sizeof advice, path);
    else if (is_no_socket(path)) {
        nolag_say("cannot connect to %s: it is not a socket; nolagd's is " NOLAG_SOCKET " unless configured",
                  path);
        return;
    }
    nolag_say("cannot connect to %s: %s; %s", path, reason(error), advice);
}
