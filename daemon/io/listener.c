/* SPDX-License-Identifier: Apache-2.0 */
/* Making, locking and removing the socket file. Each failure is logged where it is found, and only there. */
#include "daemon/io/listener.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <string.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "daemon/util/log.h"
#include "daemon/util/notify.h"
#include "protocol/alloc.h"

#define BACKLOG 1024

/* Logs a system call's failure; returns the negative errno. */
static int failed(const char *path, const char *what) {
    int error = errno;

    nl_log_error("socket %s: %s: %s", path, what, strerror(error));
    return -error;
}

static int make_address(const char *path, struct sockaddr_un *address) {
    *address = (struct sockaddr_un){.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(address->sun_path)) {
        nl_log_error("socket %s: the path is too long", path);
        return -ENAMETOOLONG;
    }
    strcpy(address->sun_path, path);
    return 0;
}

static int served(const char *path) {
    nl_log_error("socket %s: another process serves it", path);
    return -EADDRINUSE;
}

static char *with_suffix(const char *path, const char *suffix) {
    size_t len = strlen(path), more = strlen(suffix) + 1;
    char *text = nl_malloc(len + more);

    memcpy(text, path, len);
    memcpy(text + len, suffix, more);
    return text;
}

/* Is the file that is locked still the one of that name? Its last owner removes it at the end. */
static bool is_at(int fd, const char *path) {
    struct stat ours, there;

    return fstat(fd, &ours) == 0 && lstat(path, &there) == 0 && ours.st_dev == there.st_dev &&
           ours.st_ino == there.st_ino;
}

/*
 * From here on until it ends no other daemon touches the socket: between its bind() and listen() a live one
 * looks like a stale one. Nobody else can open the file, so nobody else can hold the lock.
 */
static int lock(struct nl_listener *l) {
    for (;;) {
        l->lock = open(l->lock_path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (l->lock < 0)
            return failed(l->lock_path, "cannot be opened");
        if (flock(l->lock, LOCK_EX | LOCK_NB) < 0)
            return errno == EWOULDBLOCK ? served(l->path) : failed(l->lock_path, "cannot be locked");
        if (is_at(l->lock, l->lock_path)) {
            l->locked = true;
            return 0;
        }
        close(l->lock);
    }
}

/* Is somebody serving there? Only a socket that refuses connections is stale. */
static int remove_stale(const struct sockaddr_un *address) {
    const char *path = address->sun_path;
    struct stat st;
    int fd, result = 0;

    if (lstat(path, &st) < 0)
        return errno == ENOENT ? 0 : failed(path, "cannot be looked at");
    if (!S_ISSOCK(st.st_mode)) {
        nl_log_error("socket %s: something else than a socket is there", path);
        return -EEXIST;
    }
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return failed(path, "socket");
    if (connect(fd, (const struct sockaddr *)address, sizeof(*address)) == 0 || errno != ECONNREFUSED)
        result = served(path);
    else if (unlink(path) < 0)
        result = failed(path, "a stale one cannot be removed");
    close(fd);
    return result;
}

static int give_rights(const struct nl_daemon_config *config) {
    gid_t gid = (gid_t)-1;

    if (config->socket_group != NULL) {
        /* cppcheck-suppress getgrnamCalled ; no other thread asks for groups */
        struct group *group = getgrnam(config->socket_group);
        if (group == NULL) {
            nl_log_error("socket_group: there is no group %s", config->socket_group);
            return -ENOENT;
        }
        gid = group->gr_gid;
    }
    if (gid != (gid_t)-1 && chown(config->socket, (uid_t)-1, gid) < 0)
        return failed(config->socket, "socket_group");
    return chmod(config->socket, config->socket_mode) < 0 ? failed(config->socket, "socket_mode") : 0;
}

/* Binds with no rights for anyone but us, and widens them only after. */
static int bind_private(int fd, const struct sockaddr_un *address) {
    mode_t before = umask(0177);
    int result = bind(fd, (const struct sockaddr *)address, sizeof(*address));

    umask(before);
    return result < 0 ? failed(address->sun_path, "cannot be made") : 0;
}

static int bind_ours(struct nl_listener *l, int fd, const struct sockaddr_un *address,
                     const struct nl_daemon_config *config) {
    struct stat st;
    int error = bind_private(fd, address);

    if (error < 0)
        return error;
    l->ours = true;
    if (lstat(l->path, &st) == 0) {
        l->device = st.st_dev;
        l->inode = st.st_ino;
    }
    return give_rights(config);
}

static int make_socket(struct nl_listener *l, const struct nl_daemon_config *config) {
    struct sockaddr_un address;
    int fd, error = make_address(config->socket, &address);

    if (error < 0)
        return error;
    l->path = nl_strdup(config->socket);
    l->lock_path = with_suffix(config->socket, ".lock");
    error = lock(l);
    if (error == 0)
        error = remove_stale(&address);
    if (error < 0)
        return error;
    fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return failed(l->path, "socket");
    error = bind_ours(l, fd, &address, config);
    if (error == 0)
        return fd;
    close(fd);
    return error;
}

/* The socket first: as long as the lock is held nobody can have made another in its place. */
static void remove_ours(struct nl_listener *l) {
    struct stat st;

    if (l->ours && lstat(l->path, &st) == 0 && st.st_dev == l->device && st.st_ino == l->inode)
        unlink(l->path);
    if (l->locked && is_at(l->lock, l->lock_path))
        unlink(l->lock_path);
    if (l->lock >= 0)
        close(l->lock);
    free(l->path);
    free(l->lock_path);
    l->path = l->lock_path = NULL;
    l->lock = -1;
    l->ours = l->locked = false;
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
    if (fd >= 0)
        nl_log_info("serving %s", config->socket);
    return fd;
}

int nl_listener_start(struct nl_listener *l, uv_loop_t *loop, const struct nl_daemon_config *config,
                      uv_connection_cb on_connection, void *data) {
    int fd, error;

    *l = (struct nl_listener){.lock = -1};
    fd = get_socket(l, config);
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
