/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log. Stderr is a datagram socket here: what arrives as one datagram was one write(2).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "daemon/util/log.h"

enum { LINE_TEXT = 1024 };

static int real_stderr, reader = -1;
static char line[4096];

static int capture(void **state) {
    int pair[2];

    (void)state;
    unsetenv("JOURNAL_STREAM");
    if (socketpair(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0, pair) < 0)
        return -1;
    real_stderr = dup(STDERR_FILENO);
    reader = pair[0];
    if (dup2(pair[1], STDERR_FILENO) < 0)
        return -1;
    return close(pair[1]);
}

static int release(void **state) {
    (void)state;
    dup2(real_stderr, STDERR_FILENO);
    close(real_stderr);
    return close(reader);
}

/* The next line with its end, or "" when nothing was written. */
static const char *read_line(void) {
    ssize_t n = recv(reader, line, sizeof(line) - 1, MSG_DONTWAIT);

    line[n > 0 ? n : 0] = '\0';
    return line;
}

/* JOURNAL_STREAM as systemd would set it for our stderr, or beside that by so much. */
static void set_journal(unsigned device_off, unsigned inode_off) {
    char stream[64];
    struct stat st;

    assert_int_equal(fstat(STDERR_FILENO, &st), 0);
    snprintf(stream, sizeof(stream), "%llu:%llu", (unsigned long long)st.st_dev + device_off,
             (unsigned long long)st.st_ino + inode_off);
    setenv("JOURNAL_STREAM", stream, 1);
}

static const char *const names[] = {"error", "warning", "notice", "info", "debug"};

static void test_level_names(void **state) {
    static const char *const bad[] = {"", "Error", "err", "warn", "info ", " info", "trace", "5"};
    enum nl_log_level level;

    (void)state;
    for (size_t i = 0; i < 5; i++) {
        assert_true(nl_log_level_parse(names[i], &level));
        assert_int_equal(level, i);
    }
    level = NL_LOG_NOTICE;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(nl_log_level_parse(bad[i], &level));
    assert_int_equal(level, NL_LOG_NOTICE);
}

/* For each level as the limit: which levels get through, in both ways to set it. */
static void test_threshold(void **state) {
    (void)state;
    for (int limit = NL_LOG_ERROR; limit <= NL_LOG_DEBUG; limit++) {
        nl_log_init(limit % 2 ? NL_LOG_DEBUG : (enum nl_log_level)limit);
        nl_log_set_level((enum nl_log_level)limit);
        for (int level = NL_LOG_ERROR; level <= NL_LOG_DEBUG; level++) {
            assert_int_equal(nl_log_enabled((enum nl_log_level)level), level <= limit);
            nl_log((enum nl_log_level)level, "x");
            assert_int_equal(read_line()[0] != '\0', level <= limit);
        }
    }
}

static void test_macros(void **state) {
    (void)state;
    set_journal(0, 0);
    nl_log_init(NL_LOG_DEBUG);
    nl_log_error("%d", 1);
    assert_string_equal(read_line(), "<3>1\n");
    nl_log_warning("%d", 2);
    assert_string_equal(read_line(), "<4>2\n");
    nl_log_notice("%d", 3);
    assert_string_equal(read_line(), "<5>3\n");
    nl_log_info("%d", 4);
    assert_string_equal(read_line(), "<6>4\n");
    nl_log_debug("%d", 5);
    assert_string_equal(read_line(), "<7>5\n");
}

/* What a debug line would show is not even computed when nobody wants it. */
static void test_debug_is_lazy(void **state) {
    int calls = 0;

    (void)state;
    nl_log_init(NL_LOG_INFO);
    nl_log_debug("%d", ++calls);
    assert_int_equal(calls, 0);
    nl_log_set_level(NL_LOG_DEBUG);
    nl_log_debug("%d", ++calls);
    assert_int_equal(calls, 1);
    assert_string_not_equal(read_line(), "");
}

/* Not time(), whose clock is up to a tick behind the one that the log reads. */
static time_t seconds_now(void) {
    struct timespec now;

    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec;
}

/* "2026-12-01T04:55:15.123+0100 info: text"; the time is now. */
static void test_plain_format(void **state) {
    struct tm tm = {.tm_isdst = -1};
    time_t before = seconds_now(), after, stamp;
    int ms, zone, used = 0;

    (void)state;
    setenv("TZ", "XYZ-03:30", 1);
    nl_log_init(NL_LOG_INFO);
    nl_log_info("text %s", "and more");
    after = seconds_now();
    read_line();
    assert_int_equal(sscanf(line, "%4d-%2d-%2dT%2d:%2d:%2d.%3d%5d %n", &tm.tm_year, &tm.tm_mon, &tm.tm_mday,
                            &tm.tm_hour, &tm.tm_min, &tm.tm_sec, &ms, &zone, &used),
                     8);
    assert_string_equal(line + used, "info: text and more\n");
    assert_int_equal(used, strlen("2026-12-01T04:55:15.123+0330 "));
    assert_int_equal(zone, 330);
    tm.tm_year -= 1900;
    tm.tm_mon--;
    stamp = mktime(&tm);
    assert_in_range(stamp, before, after);
    unsetenv("TZ");
}

static void test_plain_names_the_level(void **state) {
    char expected[32];

    (void)state;
    nl_log_init(NL_LOG_DEBUG);
    for (int level = NL_LOG_ERROR; level <= NL_LOG_DEBUG; level++) {
        nl_log((enum nl_log_level)level, "x");
        snprintf(expected, sizeof(expected), " %s: x\n", names[level]);
        assert_string_equal(strchr(read_line(), ' '), expected);
    }
}

static void assert_plain(void) {
    nl_log_init(NL_LOG_INFO);
    nl_log_info("x");
    assert_int_equal(read_line()[0], '2'); /* of the year */
}

/* A JOURNAL_STREAM that was inherited, and is not our stderr, is not obeyed. */
static void test_journal_only_when_it_is_ours(void **state) {
    static const char *const junk[] = {"", ":", "x:y", "1", "1:"};

    (void)state;
    for (size_t i = 0; i < sizeof(junk) / sizeof(junk[0]); i++) {
        setenv("JOURNAL_STREAM", junk[i], 1);
        assert_plain();
    }
    set_journal(1, 0);
    assert_plain();
    set_journal(0, 1);
    assert_plain();
    set_journal(0, 0);
    nl_log_init(NL_LOG_INFO);
    nl_log_info("x");
    assert_string_equal(read_line(), "<6>x\n");
}

static void assert_logged_as(const char *text, const char *expected) {
    size_t len = strlen(expected);

    nl_log_info("%s", text);
    read_line();
    assert_memory_equal(line, "<6>", 3);
    assert_int_equal(strlen(line), len + 4);
    assert_memory_equal(line + 3, expected, len);
    assert_int_equal(line[len + 3], '\n');
}

static void start_journal(void) {
    set_journal(0, 0);
    nl_log_init(NL_LOG_INFO);
}

static void test_escapes(void **state) {
    static const char *const pairs[][2] = {
        {"", ""},
        {"plain ~ text \"\\", "plain ~ text \"\\"},
        {"a\nb", "a\\x0ab"},
        {"a\r\n<0>b", "a\\x0d\\x0a<0>b"},
        {"\t\x01\x1f\x7f", "\\x09\\x01\\x1f\\x7f"},
        {"\x1b[31m", "\\x1b[31m"},
        {"\xc3\xa4 \xe2\x82\xac \xf0\x9f\x99\x82", "\xc3\xa4 \xe2\x82\xac \xf0\x9f\x99\x82"},
        {"\xc2\xa0", "\xc2\xa0"},                                       /* the first behind C1 */
        {"\xc2\x80\xc2\x9b\xc2\x9f", "\\xc2\\x80\\xc2\\x9b\\xc2\\x9f"}, /* C1: a terminal's CSI among them */
        {"\x80", "\\x80"},                                              /* a continuation alone */
        {"\xc3", "\\xc3"},                                              /* cut, at the end */
        {"\xc3q", "\\xc3q"},                                            /* cut, before something */
        {"\xe2\x82", "\\xe2\\x82"},
        {"\xf0\x9f\x99", "\\xf0\\x9f\\x99"},
        {"\xc0\xaf", "\\xc0\\xaf"}, /* overlong */
        {"\xe0\x9f\xbf", "\\xe0\\x9f\\xbf"},
        {"\xe0\xa0\x80", "\xe0\xa0\x80"},
        {"\xf0\x8f\xbf\xbf", "\\xf0\\x8f\\xbf\\xbf"},
        {"\xf0\x90\x80\x80", "\xf0\x90\x80\x80"},
        {"\xed\x9f\xbf", "\xed\x9f\xbf"},
        {"\xed\xa0\x80", "\\xed\\xa0\\x80"}, /* a surrogate */
        {"\xf4\x8f\xbf\xbf", "\xf4\x8f\xbf\xbf"},
        {"\xf4\x90\x80\x80", "\\xf4\\x90\\x80\\x80"}, /* behind the last character */
        {"\xf5\x80\x80\x80", "\\xf5\\x80\\x80\\x80"},
        {"\xff\xfe", "\\xff\\xfe"},
    };

    (void)state;
    start_journal();
    for (size_t i = 0; i < sizeof(pairs) / sizeof(pairs[0]); i++)
        assert_logged_as(pairs[i][0], pairs[i][1]);
}

/* Every byte there is: one line each, and nothing in it but printable ASCII. */
static void test_no_byte_breaks_a_line(void **state) {
    char text[4] = "a.b", expected[8];

    (void)state;
    start_journal();
    for (int byte = 1; byte < 256; byte++) {
        text[1] = (char)byte;
        if (byte < 0x20 || byte >= 0x7f)
            snprintf(expected, sizeof(expected), "a\\x%02xb", byte);
        else
            snprintf(expected, sizeof(expected), "a%cb", byte);
        assert_logged_as(text, expected);
    }
}

static void fill(char *text, size_t len) {
    memset(text, 'x', len);
    text[len] = '\0';
}

static void test_cut(void **state) {
    char text[6000], expected[LINE_TEXT + 1];

    (void)state;
    start_journal();
    fill(expected, LINE_TEXT - 3);
    strcat(expected, "...");
    for (size_t len = LINE_TEXT - 2; len < LINE_TEXT + 10; len++) {
        fill(text, len);
        assert_logged_as(text, len <= LINE_TEXT ? text : expected);
    }
    fill(text, sizeof(text) - 1);
    assert_logged_as(text, expected);
}

/* Neither an escape nor a character is cut in two, wherever it lies. */
static void test_cut_between_characters(void **state) {
    static const char *const tails[] = {"\n", "\xe2\x82\xac", "\xf0\x9f\x99\x82", "\xff"};
    char text[LINE_TEXT + 64];
    size_t len;

    (void)state;
    start_journal();
    for (size_t i = 0; i < sizeof(tails) / sizeof(tails[0]); i++) {
        for (size_t at = LINE_TEXT - 10; at <= LINE_TEXT; at++) {
            fill(text, at);
            for (int n = 0; n < 5; n++)
                strcat(text, tails[i]);
            nl_log_info("%s", text);
            len = strlen(read_line());
            assert_in_range(len, 3 + LINE_TEXT - 6, 3 + LINE_TEXT + 1);
            assert_string_equal(line + len - 4, "...\n");
            while (len > 4 &&
                   line[len - 5] != 'x') { /* what follows the x: whole characters or escapes only */
                size_t width = i == 1 ? 3 : 4;

                assert_memory_equal(line + len - 4 - width,
                                    i == 0   ? "\\x0a"
                                    : i == 3 ? "\\xff"
                                             : tails[i],
                                    width);
                len -= width;
            }
        }
    }
}

static void test_errno_is_kept(void **state) {
    (void)state;
    nl_log_init(NL_LOG_INFO);
    errno = ENOTTY;
    nl_log_info("%s", "x");
    assert_int_equal(errno, ENOTTY);
    shutdown(STDERR_FILENO, SHUT_WR);
    signal(SIGPIPE, SIG_IGN);
    errno = ENOTTY;
    nl_log_info("%s", "x");
    assert_int_equal(errno, ENOTTY);
}

/* ---- budgets ---- */

static bool take(struct nl_log_budget *b, uint64_t now, uint32_t expected_suppressed) {
    uint32_t suppressed = UINT32_MAX;
    bool may = nl_log_budget_take(b, now, 3, 1000, &suppressed);

    assert_int_equal(suppressed, may ? expected_suppressed : UINT32_MAX);
    return may;
}

static void test_budget_burst(void **state) {
    struct nl_log_budget b = {0};

    (void)state;
    for (int i = 0; i < 3; i++)
        assert_true(take(&b, 5000, 0));
    for (int i = 0; i < 7; i++)
        assert_false(take(&b, 5000 + 142 * (uint64_t)i, 0));
    assert_false(take(&b, 5999, 0));
    assert_true(take(&b, 6000, 8));
    assert_false(take(&b, 6999, 0));
    assert_true(take(&b, 7000, 1));
}

/* A pause earns one line every interval, and never more than the burst. */
static void test_budget_pause(void **state) {
    struct nl_log_budget b = {0};

    (void)state;
    for (int i = 0; i < 3; i++)
        assert_true(take(&b, 0, 0));
    assert_false(take(&b, 0, 0));
    assert_true(take(&b, 2500, 1)); /* two earned */
    assert_true(take(&b, 2500, 0));
    assert_false(take(&b, 2500, 0));
    assert_true(take(&b, 3000, 1)); /* the third falls due at 3000, not at 3500 */
    for (int i = 0; i < 3; i++)
        assert_true(take(&b, 1000000, 0));
    assert_false(take(&b, 1000000, 0));
}

/* Over a long time: the burst, and one line every interval. */
static void test_budget_rate(void **state) {
    struct nl_log_budget b = {0};
    unsigned lines = 0;

    (void)state;
    for (uint64_t now = 1; now <= 100000; now += 7) {
        uint32_t suppressed;

        lines += nl_log_budget_take(&b, now, 3, 1000, &suppressed);
    }
    assert_in_range(lines, 3 + 98, 3 + 100);
}

static void test_budget_extremes(void **state) {
    struct nl_log_budget b = {0}, none = {0};
    uint32_t suppressed;

    (void)state;
    for (int i = 0; i < 100; i++) /* no interval: no bound */
        assert_true(nl_log_budget_take(&b, 1, 3, 0, &suppressed));
    assert_true(nl_log_budget_take(&none, 1, 0, 1000, &suppressed)); /* no burst: still one an interval */
    assert_false(nl_log_budget_take(&none, 1000, 0, 1000, &suppressed));
    none.suppressed = UINT32_MAX - 1;
    assert_false(nl_log_budget_take(&none, 1000, 0, 1000, &suppressed));
    assert_false(nl_log_budget_take(&none, 1000, 0, 1000, &suppressed));
    assert_true(nl_log_budget_take(&none, 1001, 0, 1000, &suppressed));
    assert_int_equal(suppressed, UINT32_MAX);
}

#define CAPTURED(f) cmocka_unit_test_setup_teardown(f, capture, release)

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_level_names),
        CAPTURED(test_threshold),
        CAPTURED(test_macros),
        CAPTURED(test_debug_is_lazy),
        CAPTURED(test_plain_format),
        CAPTURED(test_plain_names_the_level),
        CAPTURED(test_journal_only_when_it_is_ours),
        CAPTURED(test_escapes),
        CAPTURED(test_no_byte_breaks_a_line),
        CAPTURED(test_cut),
        CAPTURED(test_cut_between_characters),
        CAPTURED(test_errno_is_kept),
        cmocka_unit_test(test_budget_burst),
        cmocka_unit_test(test_budget_pause),
        cmocka_unit_test(test_budget_rate),
        cmocka_unit_test(test_budget_extremes),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
