/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The log. A line is built in one buffer of fixed size and goes out in one write(2), so that lines of
 * several processes on one stderr do not mix, and so that logging works without memory.
 */
#include "daemon/util/log.h"

#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <time.h>
#include <unistd.h>

enum {
    HEAD_MAX = 64,   /* priority, or time and level */
    TEXT_MAX = 1024, /* the text as it is written, with its "..." when it was cut */
};

static const char cut_mark[] = "...";

static const struct {
    const char *name;
    int priority; /* syslog's, for the journal */
} levels[] = {
    [NL_LOG_ERROR] = {"error", 3}, [NL_LOG_WARNING] = {"warning", 4}, [NL_LOG_NOTICE] = {"notice", 5},
    [NL_LOG_INFO] = {"info", 6},   [NL_LOG_DEBUG] = {"debug", 7},
};

static enum nl_log_level max_level = NL_LOG_INFO;
static bool to_journal;

bool nl_log_level_parse(const char *name, enum nl_log_level *level) {
    for (size_t i = 0; i < sizeof(levels) / sizeof(levels[0]); i++) {
        if (strcmp(name, levels[i].name) == 0) {
            *level = (enum nl_log_level)i;
            return true;
        }
    }
    return false;
}

/*
 * $JOURNAL_STREAM is inherited by processes whose stderr was redirected since: only the numbers of
 * device and inode tell that our stderr still is the journal's (systemd.exec(5)).
 */
static bool stderr_is_journal(void) {
    const char *stream = getenv("JOURNAL_STREAM");
    unsigned long long device, inode;
    struct stat st;

    if (!stream || sscanf(stream, "%llu:%llu", &device, &inode) != 2)
        return false;
    return fstat(STDERR_FILENO, &st) == 0 && st.st_dev == device && st.st_ino == inode;
}

void nl_log_init(enum nl_log_level level) {
    tzset();
    to_journal = stderr_is_journal();
    max_level = level;
}

void nl_log_set_level(enum nl_log_level level) {
    max_level = level;
}

bool nl_log_enabled(enum nl_log_level level) {
    return level <= max_level;
}

static size_t write_head(char *out, enum nl_log_level level) {
    char day[32], zone[8];
    struct timespec now;
    struct tm tm;
    int len;

    if (to_journal)
        return (size_t)snprintf(out, HEAD_MAX, "<%d>", levels[level].priority);
    clock_gettime(CLOCK_REALTIME, &now);
    localtime_r(&now.tv_sec, &tm);
    strftime(day, sizeof(day), "%Y-%m-%dT%H:%M:%S", &tm);
    strftime(zone, sizeof(zone), "%z", &tm);
    len = snprintf(out, HEAD_MAX, "%s.%03ld%s %s: ", day, now.tv_nsec / 1000000, zone, levels[level].name);
    return (size_t)len;
}

static bool is_continuation(unsigned char byte) {
    return (byte & 0xc0) == 0x80;
}

/*
 * Returns the length of the character at s if it can be shown as it is: printable ASCII or valid UTF-8 other
 * than the C1 control characters, which terminals obey. Returns 0 if its first byte has to be escaped.
 * s is NUL-terminated, and no continuation byte is NUL: nothing behind the end is looked at.
 */
static size_t printable_length(const unsigned char *s) {
    if (s[0] < 0x80)
        return s[0] >= 0x20 && s[0] != 0x7f;
    if (s[0] < 0xc2 || s[0] > 0xf4 || !is_continuation(s[1]))
        return 0;
    if (s[0] < 0xe0)
        return s[0] == 0xc2 && s[1] < 0xa0 ? 0 : 2;
    if (!is_continuation(s[2]))
        return 0;
    if (s[0] < 0xf0)
        return (s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ? 0 : 3;
    if (!is_continuation(s[3]))
        return 0;
    return (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f) ? 0 : 4;
}

/* Writes the character at s, escaped if need be; returns how many bytes of s it was. */
static size_t write_character(char *out, size_t *len, const char *s) {
    static const char hex[] = "0123456789abcdef";
    unsigned char byte = (unsigned char)s[0];
    size_t length = printable_length((const unsigned char *)s);

    if (length > 0) {
        memcpy(out + *len, s, length);
        *len += length;
        return length;
    }
    memcpy(out + *len, "\\x", 2);
    out[*len + 2] = hex[byte >> 4];
    out[*len + 3] = hex[byte & 15];
    *len += 4;
    return 1;
}

/* Writes at most TEXT_MAX bytes of text, escaped; a text that does not fit ends in the mark. */
static size_t write_text(char *out, const char *text) {
    const size_t mark = sizeof(cut_mark) - 1;
    size_t len = 0, fits = 0;

    while (*text && len <= TEXT_MAX) {
        text += write_character(out, &len, text);
        if (len <= TEXT_MAX - mark)
            fits = len;
    }
    if (len <= TEXT_MAX)
        return len;
    memcpy(out + fits, cut_mark, mark);
    return fits + mark;
}

static void write_line(const char *line, size_t len) {
    ssize_t n;

    do
        n = write(STDERR_FILENO, line, len);
    while (n < 0 && errno == EINTR);
}

void nl_log(enum nl_log_level level, const char *format, ...) {
    /* One character more than fits, so that write_text() sees that there was more: 4 bytes, or 1 escaped. */
    char text[TEXT_MAX + 5], line[HEAD_MAX + TEXT_MAX + 5];
    int saved = errno;
    va_list args;
    size_t len;

    if (!nl_log_enabled(level))
        return;
    va_start(args, format);
    if (vsnprintf(text, sizeof(text), format, args) < 0)
        text[0] = '\0';
    va_end(args);
    len = write_head(line, level);
    len += write_text(line + len, text);
    line[len++] = '\n';
    write_line(line, len);
    errno = saved;
}

/* Adds what the time that passed has earned. A budget that is full earns nothing until it is used. */
static void refill(struct nl_log_budget *b, uint64_t now_ms, uint32_t burst, uint64_t interval_ms) {
    uint64_t earned;

    if (b->next_ms == 0) /* never used: a budget of zero bytes is a full one */
        b->left = burst;
    else if (now_ms >= b->next_ms) {
        earned = 1 + (now_ms - b->next_ms) / interval_ms;
        b->left = earned >= burst - b->left ? burst : b->left + (uint32_t)earned;
        b->next_ms += earned * interval_ms;
    }
    if (b->left == burst)
        b->next_ms = now_ms + interval_ms;
}

bool nl_log_budget_take(struct nl_log_budget *b, uint64_t now_ms, uint32_t burst, uint64_t interval_ms,
                        uint32_t *suppressed) {
    /* Without a burst there is still one line every interval; without an interval there is no bound. */
    if (interval_ms > 0)
        refill(b, now_ms, burst > 0 ? burst : 1, interval_ms);
    else
        b->left = 1;
    if (b->left == 0) {
        if (b->suppressed < UINT32_MAX)
            b->suppressed++;
        return false;
    }
    b->left--;
    *suppressed = b->suppressed;
    b->suppressed = 0;
    return true;
}
