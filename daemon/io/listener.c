/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/io/listener.h"

#include <errno.h>
#include <grp.h>
#include <string.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/util/log.h"
#include "daemon/util/notify.h"
#include "protocol/alloc.h"

#define BACKLOG 1024

static int make_address(const char *path, struct sockaddr_un *address) {
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(address->sun_path)) {
        nl_log_error("socket %s: the path is too long", path);
        return -ENAMETOOLONG;
    }
    strcpy(address->sun_path, path);
    return 0;
}

/* Is a daemon serving there? Only a socket that refuses connections is stale. */
static int remove_stale(const struct sockaddr_un *address) {
    struct stat st;
    int fd, result = 0;

    if (lstat(address->sun_path, &st) < 0)
        return errno == ENOENT ? 0 : -errno;
    if (!S_ISSOCK(st.st_mode)) {
        nl_log_error("socket %s: something else than a socket is there", address->sun_path);
        return -EEXIST;
    }
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    if (connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0 || errno != ECONNREFUSED) {
        nl_log_error("socket %s: another process serves it", address->sun_path);
        result = -EADDRINUSE;
    } else if (unlink(address->sun_path) < 0) {
        result = -errno;
    }
    close(fd);
    return result;
}

static int give_rights(const struct nl_daemon_config *config) {
    gid_t gid = (gid_t)-1;

    if (config->socket_group != NULL) {
        struct group *group = getgrnam(config->socket_group);
        if (group == NULL) {
            nl_log_error("socket_group: there is no group %s", config->socket_group);
            return -ENOENT;
        }
        gid = group->gr_gid;
    }
    if (gid != (gid_t)-1 && chown(config->socket, (uid_t)-1, gid) < 0)
        return -errno;
    return chmod(config->socket, config->socket_mode) < 0 ? -errno : 0;
}

/* Binds with no rights for anyone but us, and widens them only after. */
static int bind_private(int fd, const struct sockaddr_un *address) {
    mode_t before = umask(0177);
    int result = bind(fd, (const struct sockaddr *)address, sizeof(*address)) < 0 ? -errno : 0;

    umask(before);
    return result;
}

static int make_socket(struct nl_listener *l, const struct nl_daemon_config *config) {
    struct sockaddr_un address;
    struct stat st;
    int fd, error = make_address(config->socket, &address);

    if (error == 0)
        error = remove_stale(&address);
    if (error < 0)
        return error;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    error = bind_private(fd, &address);
    if (error < 0) {
        close(fd);
        return error;
    }
    l->ours = true;
    l->path = nl_strdup(config->socket);
    if (lstat(l->path, &st) == 0) {
        l->device = st.st_dev;
        l->inode = st.st_ino;
    }
    error = give_rights(config);
    if (error == 0)
        return fd;
    close(fd);
    return error;
}

static void remove_ours(struct nl_listener *l) {
    struct stat st;

    if (l->ours && lstat(l->path, &st) == 0 && st.st_dev == l->device && st.st_ino == l->inode)
        unlink(l->path);
    free(l->path);
    l->path = NULL;
    l->ours = false;
}

static int get_socket(struct nl_listener *l, const struct nl_daemon_config *config) {
    const char *why = NULL;
    int fd = nl_notify_listen_fd(&why);

    if (fd >= 0) {
        nl_log_info("serving the socket that was passed");
        return fd;
    }
    if (fd != -ENOENT) {
        nl_log_error("socket activation: %s", why);
        return fd;
    }
    fd = make_socket(l, config);
    if (fd < 0)
        nl_log_error("socket %s: %s", config->socket, strerror(-fd));
    else
        nl_log_info("serving %s", config->socket);
    return fd;
}

int nl_listener_start(struct nl_listener *l, uv_loop_t *loop, const struct nl_daemon_config *config,
                      uv_connection_cb on_connection, void *data) {
    int fd = get_socket(l, config);
    int error;

    if (fd < 0) {
        remove_ours(l);
        return fd;
    }
    uv_pipe_init(loop, &l->pipe, 0);
    l->pipe.data = data;
    l->open = true;
    error = uv_pipe_open(&l->pipe, fd);
    if (error == 0)
        error = uv_listen((uv_stream_t *)&l->pipe, BACKLOG, on_connection);
    if (error < 0) {
        nl_log_error("socket: %s", uv_strerror(error));
        nl_listener_close(l);
    }
    return error;
}

void nl_listener_close(struct nl_listener *l) {
    if (!l->open)
        return;
    l->open = false;
    remove_ours(l);
    uv_close((uv_handle_t *)&l->pipe, NULL);
}
