/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What nolagd tells systemd, read from a socket in systemd's place; and sockets passed the way
 * systemd does, to a child, where file descriptor 3 and LISTEN_PID can be what they have to be.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include "daemon/util/notify.h"

static char folder[] = "/tmp/nl-notify-XXXXXX";
static char notify_path[sizeof(folder) + 16], listen_path[sizeof(folder) + 16];
static int manager = -1;
static char heard[2048];

static void bind_to(int fd, const char *path) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
    assert_int_equal(bind(fd, (struct sockaddr *)&address, sizeof(address)), 0);
}

static int setup(void **state) {
    (void)state;
    if (!mkdtemp(folder))
        return -1;
    snprintf(notify_path, sizeof(notify_path), "%s/notify", folder);
    snprintf(listen_path, sizeof(listen_path), "%s/listen", folder);
    manager = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    bind_to(manager, notify_path);
    return 0;
}

static int teardown(void **state) {
    (void)state;
    close(manager);
    unlink(notify_path);
    return rmdir(folder);
}

/* The next notification, or "" when there was none. */
static const char *hear(void) {
    ssize_t n = recv(manager, heard, sizeof(heard) - 1, MSG_DONTWAIT);

    heard[n > 0 ? n : 0] = '\0';
    return heard;
}

static int with_manager(void **state) {
    (void)state;
    return setenv("NOTIFY_SOCKET", notify_path, 1);
}

static int without_manager(void **state) {
    (void)state;
    unsetenv("WATCHDOG_USEC");
    unsetenv("WATCHDOG_PID");
    return unsetenv("NOTIFY_SOCKET");
}

static void test_ready(void **state) {
    (void)state;
    nl_notify_ready("1/1 sessions live");
    assert_string_equal(hear(), "READY=1\nSTATUS=1/1 sessions live");
    nl_notify_ready(NULL);
    assert_string_equal(hear(), "READY=1");
}

static void test_status(void **state) {
    (void)state;
    nl_notify_status("100% %s of it");
    assert_string_equal(hear(), "STATUS=100% %s of it");
}

/* No text can set another variable. */
static void test_status_is_one_line(void **state) {
    char text[2000];

    (void)state;
    nl_notify_status("a\nMAINPID=1\r\tb~\x7f\xc3\xa4\xff");
    assert_string_equal(hear(), "STATUS=a MAINPID=1  b~????");
    nl_notify_ready("a\nSTOPPING=1");
    assert_string_equal(hear(), "READY=1\nSTATUS=a STOPPING=1");
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    nl_notify_status(text);
    assert_int_equal(strlen(hear()), 7 + 255);
}

static void test_stopping(void **state) {
    (void)state;
    nl_notify_stopping(0);
    assert_string_equal(hear(), "STOPPING=1");
    nl_notify_stopping(7500000);
    assert_string_equal(hear(), "STOPPING=1\nEXTEND_TIMEOUT_USEC=7500000");
    nl_notify_stopping(UINT64_MAX);
    assert_string_equal(hear(), "STOPPING=1\nEXTEND_TIMEOUT_USEC=18446744073709551615");
}

static void test_watchdog(void **state) {
    (void)state;
    nl_notify_watchdog();
    assert_string_equal(hear(), "WATCHDOG=1");
}

/* Everything twice, and nothing is heard, and nothing goes wrong. */
static void test_without_systemd(void **state) {
    const char *why = "unchanged";

    (void)state;
    for (int i = 0; i < 2; i++) {
        nl_notify_ready("x");
        nl_notify_status("x");
        nl_notify_watchdog();
        nl_notify_stopping(1);
        assert_int_equal(nl_notify_watchdog_interval(), 0);
        assert_int_equal(nl_notify_listen_fd(&why), -ENOENT);
        assert_null(why);
    }
    assert_string_equal(hear(), "");
    setenv("NOTIFY_SOCKET", "/nonexistent/socket", 1);
    nl_notify_ready("x");
}

static void test_watchdog_interval(void **state) {
    static const struct {
        const char *usec;
        uint64_t ms;
    } cases[] = {{"60000000", 20000}, {"3000", 1}, {"2999", 1}, {"1", 1}, {"0", 0}, {"x", 0},
                 {"10000000", 3333}};
    char pid[32];

    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        setenv("WATCHDOG_USEC", cases[i].usec, 1);
        assert_int_equal(nl_notify_watchdog_interval(), cases[i].ms);
        assert_int_equal(nl_notify_watchdog_interval(), cases[i].ms); /* asking does not use it up */
    }
    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    setenv("WATCHDOG_PID", pid, 1);
    assert_int_equal(nl_notify_watchdog_interval(), 3333);
    setenv("WATCHDOG_PID", "1", 1); /* meant for somebody else */
    assert_int_equal(nl_notify_watchdog_interval(), 0);
}

/* ---- sockets from systemd ---- */

/* Runs in a child. Says with its exit code which expectation failed; 0: none. */
struct passing {
    int fd;            /* becomes 3; -1: nothing is passed */
    const char *count; /* LISTEN_FDS */
    const char *pid;   /* LISTEN_PID; NULL: the child's own */
    int result;
    const char *why; /* a word in the reason; NULL: there is none */
};

static int check_descriptor(void) {
    if (!(fcntl(3, F_GETFD) & FD_CLOEXEC))
        return 13;
    if (!(fcntl(3, F_GETFL) & O_NONBLOCK))
        return 14;
    return getenv("LISTEN_FDS") || getenv("LISTEN_PID") ? 15 : 0; /* not for our children */
}

static int in_child(const struct passing *p) {
    char pid[32];
    const char *why = NULL;
    int result;

    snprintf(pid, sizeof(pid), "%d", (int)getpid());
    if (p->fd >= 0 && p->fd != 3 && dup2(p->fd, 3) < 0)
        return 10;
    if (p->fd >= 0 && p->count[0] == '2' && dup2(3, 4) < 0)
        return 10;
    setenv("LISTEN_FDS", p->count, 1);
    setenv("LISTEN_PID", p->pid ? p->pid : pid, 1);
    result = nl_notify_listen_fd(&why);
    if (result != p->result)
        return 11;
    if (!why != !p->why || (why && !strstr(why, p->why)))
        return 12;
    return result == 3 ? check_descriptor() : 0;
}

static void expect_passed(struct passing p) {
    int status;
    pid_t pid = fork();

    assert_true(pid >= 0);
    if (pid == 0)
        _exit(in_child(&p));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFEXITED(status));
    assert_int_equal(WEXITSTATUS(status), 0);
    if (p.fd >= 0)
        close(p.fd);
}

/* A socket of that type, bound when there is a path, listening when asked to. */
static int make_socket(int family, int type, bool listening) {
    int fd = socket(family, type, 0);

    assert_true(fd >= 0);
    if (family == AF_UNIX) {
        unlink(listen_path);
        bind_to(fd, listen_path);
        unlink(listen_path);
    }
    if (listening)
        assert_int_equal(listen(fd, 8), 0);
    return fd;
}

static void test_listening_socket(void **state) {
    (void)state;
    expect_passed((struct passing){make_socket(AF_UNIX, SOCK_STREAM, true), "1", NULL, 3, NULL});
}

static void test_wrong_descriptors(void **state) {
    int pipe_ends[2];

    (void)state;
    expect_passed(
        (struct passing){make_socket(AF_UNIX, SOCK_STREAM, false), "1", NULL, -EINVAL, "listening"});
    expect_passed((struct passing){make_socket(AF_UNIX, SOCK_SEQPACKET, true), "1", NULL, -EINVAL, "stream"});
    expect_passed((struct passing){make_socket(AF_UNIX, SOCK_DGRAM, false), "1", NULL, -EINVAL, "stream"});
    expect_passed((struct passing){make_socket(AF_INET, SOCK_STREAM, true), "1", NULL, -EINVAL, "Unix"});
    assert_int_equal(pipe(pipe_ends), 0);
    expect_passed((struct passing){pipe_ends[0], "1", NULL, -EINVAL, "socket"});
    close(pipe_ends[1]);
}

static void test_wrong_numbers(void **state) {
    (void)state;
    expect_passed(
        (struct passing){make_socket(AF_UNIX, SOCK_STREAM, true), "2", NULL, -EINVAL, "more than one"});
    expect_passed((struct passing){-1, "x", NULL, -EINVAL, "LISTEN_FDS"});
    expect_passed((struct passing){-1, "1", "x", -EINVAL, "LISTEN_PID"});
    expect_passed((struct passing){make_socket(AF_UNIX, SOCK_STREAM, true), "1", "1", -ENOENT, NULL});
}

#define MANAGED(f) cmocka_unit_test_setup_teardown(f, with_manager, without_manager)
#define ALONE(f) cmocka_unit_test_setup_teardown(f, without_manager, without_manager)

int main(void) {
    const struct CMUnitTest tests[] = {
        MANAGED(test_ready),           MANAGED(test_status),         MANAGED(test_status_is_one_line),
        MANAGED(test_stopping),        MANAGED(test_watchdog),       ALONE(test_without_systemd),
        ALONE(test_watchdog_interval), ALONE(test_listening_socket), ALONE(test_wrong_descriptors),
        ALONE(test_wrong_numbers),
    };

    return cmocka_run_group_tests(tests, setup, teardown);
}
