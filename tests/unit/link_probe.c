/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program for tests/integration/test_link.py: does with links what the lines on its standard input say, and
 * prints what the links tell, a line each. It ends at the end of its input; the exit status is 0 only if the
 * loop was left empty. NAME is a word of the test's choice.
 *
 *   open NAME URL [ca=FILE] [connect=MS] [resolve=MS] [frame=BYTES] [queue=BYTES] [at=open|frame]
 *                               at: nl_link_close() is called from inside that callback
 *   send NAME SIZE COUNT        frame k of COUNT has the bytes k, k+1, ... modulo 256; prints "sent NAME n"
 *   queued NAME                 prints "queued NAME bytes"
 *   digest NAME                 prints "digest NAME frames sha256" over length and bytes of all frames so far
 *   close NAME                  nl_link_close()
 *   cycle URL N [ca=FILE]       opens and closes a link N times; prints "cycled N"
 *   use                         prints "use fds rss_kib opened closed"
 *   nodelay                     prints "nodelay n of m": TCP sockets that have the option, and all
 *
 *   open NAME | frame NAME size | closed NAME end code status retry_after certificate detail
 */
#include <assert.h>
#include <dirent.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <openssl/evp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>
#include <utlist.h>
#include <uv.h>

#include "daemon/io/link.h"
#include "protocol/alloc.h"

struct probe {
    char name[32];
    struct nl_link *link;
    enum { NOT_AT_ALL, AT_OPEN, AT_FRAME } close_at;
    bool opened;
    unsigned long frames, cycles; /* cycles: left to do */
    char url[4096], ca_file[512];
    EVP_MD_CTX *digest;
    struct probe *prev, *next;
};

static uv_loop_t loop;
static struct nl_link_context *context;
static struct probe *probes;
static unsigned long opened, closed;
static bool inside; /* a call to the module, from where no callback may come */
static uv_pipe_t input;

static void on_open(void *ctx);
static void on_frame(void *ctx, struct nl_slice frame);
static void on_closed(void *ctx, const struct nl_link_ending *ending);

/* ---- calls ---- */

static void close_link(struct probe *p) {
    bool before = inside;

    inside = true;
    nl_link_close(p->link);
    inside = before;
}

static void read_option(struct probe *p, struct nl_link_options *o, const char *word) {
    unsigned long number = strtoul(strchr(word, '=') + 1, NULL, 10);

    if (strncmp(word, "ca=", 3) == 0)
        snprintf(p->ca_file, sizeof(p->ca_file), "%s", word + 3);
    else if (strncmp(word, "connect=", 8) == 0)
        o->connect_timeout_ms = number;
    else if (strncmp(word, "resolve=", 8) == 0)
        o->resolve_timeout_ms = number;
    else if (strncmp(word, "frame=", 6) == 0)
        o->max_frame = number;
    else if (strncmp(word, "queue=", 6) == 0)
        o->max_queued = number;
    else
        p->close_at = strcmp(word, "at=open") == 0 ? AT_OPEN : AT_FRAME;
}

static void open_link(struct probe *p, char **words) {
    struct nl_link_options options = {.url = p->url,
                                      .connect_timeout_ms = 5000,
                                      .resolve_timeout_ms = 5000,
                                      .max_frame = 2 << 20,
                                      .max_queued = 64 << 20};
    struct nl_link_handler handler = {
        .on_open = on_open, .on_frame = on_frame, .on_closed = on_closed, .ctx = p};

    for (; *words != NULL; words++)
        read_option(p, &options, *words);
    options.ca_file = p->ca_file[0] == '\0' ? NULL : p->ca_file;
    opened++;
    inside = true;
    p->link = nl_link_open(context, &options, &handler);
    inside = false;
}

static struct probe *make_probe(const char *name, const char *url) {
    struct probe *p = nl_calloc(1, sizeof(*p));

    snprintf(p->name, sizeof(p->name), "%s", name);
    snprintf(p->url, sizeof(p->url), "%s", url);
    p->digest = EVP_MD_CTX_new();
    EVP_DigestInit_ex(p->digest, EVP_sha256(), NULL);
    DL_APPEND(probes, p);
    return p;
}

static void free_probe(struct probe *p) {
    DL_DELETE(probes, p);
    EVP_MD_CTX_free(p->digest);
    free(p);
}

/* ---- callbacks ---- */

static void on_open(void *ctx) {
    struct probe *p = ctx;

    assert(!inside && !p->opened);
    p->opened = true;
    if (p->cycles == 0)
        printf("open %s\n", p->name);
    if (p->cycles != 0 || p->close_at == AT_OPEN)
        close_link(p);
}

static void on_frame(void *ctx, struct nl_slice frame) {
    struct probe *p = ctx;
    uint8_t length[8];

    assert(!inside && p->opened);
    p->frames++;
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(frame.len >> (56 - 8 * i));
    EVP_DigestUpdate(p->digest, length, sizeof(length));
    EVP_DigestUpdate(p->digest, frame.ptr, frame.len);
    printf("frame %s %zu\n", p->name, frame.len);
    if (p->close_at == AT_FRAME)
        close_link(p);
}

static const char *end_name(enum nl_link_end end) {
    static const char *const names[] = {
        [NL_LINK_CLOSED_BY_US] = "closed_by_us",
        [NL_LINK_DNS] = "dns",
        [NL_LINK_CONNECT] = "connect",
        [NL_LINK_TLS] = "tls",
        [NL_LINK_UPGRADE] = "upgrade",
        [NL_LINK_CLOSED] = "closed",
        [NL_LINK_LOST] = "lost",
        [NL_LINK_OVERSIZE] = "oversize",
    };

    return names[end];
}

static void on_closed(void *ctx, const struct nl_link_ending *ending) {
    struct probe *p = ctx;
    char *no_options[] = {NULL};

    assert(!inside && p->link != NULL);
    closed++;
    p->link = NULL;
    p->opened = false;
    if (p->cycles > 1 && ending->end == NL_LINK_CLOSED_BY_US) {
        p->cycles--;
        open_link(p, no_options);
        return;
    }
    if (p->cycles == 1 && ending->end == NL_LINK_CLOSED_BY_US)
        printf("cycled %s\n", p->name);
    else
        printf("closed %s %s %d %d %llu %d %s\n", p->name, end_name(ending->end), ending->code,
               ending->http_status, (unsigned long long)ending->retry_after_ms, ending->certificate,
               ending->detail);
    if (p->cycles > 0)
        free_probe(p);
}

/* ---- commands ---- */

static struct probe *find(const char *name) {
    struct probe *p;

    DL_FOREACH(probes, p) {
        if (strcmp(p->name, name) == 0)
            return p;
    }
    fprintf(stderr, "no link %s\n", name);
    exit(2);
}

static void command_send(char **words) {
    struct probe *p = find(words[1]);
    size_t size = strtoul(words[2], NULL, 10), count = strtoul(words[3], NULL, 10), sent = 0;
    uint8_t *bytes = nl_malloc(size + 256);

    for (size_t i = 0; i < size + 256; i++)
        bytes[i] = (uint8_t)i;
    inside = true;
    while (p->link != NULL && sent < count && nl_link_send(p->link, nl_slice(bytes + sent % 256, size)))
        sent++;
    inside = false;
    free(bytes);
    printf("sent %s %zu\n", p->name, sent);
}

static void command_digest(char **words) {
    struct probe *p = find(words[1]);
    EVP_MD_CTX *copy = EVP_MD_CTX_new();
    uint8_t hash[EVP_MAX_MD_SIZE];
    unsigned len;

    EVP_MD_CTX_copy_ex(copy, p->digest);
    EVP_DigestFinal_ex(copy, hash, &len);
    EVP_MD_CTX_free(copy);
    printf("digest %s %lu ", p->name, p->frames);
    for (unsigned i = 0; i < len; i++)
        printf("%02x", hash[i]);
    printf("\n");
}

/* Calls f with each descriptor that is open; returns how many there are. */
static int each_descriptor(void (*f)(int fd, void *ctx), void *ctx) {
    DIR *folder = opendir("/proc/self/fd");
    struct dirent *entry;
    int n = 0;

    while ((entry = readdir(folder)) != NULL) {
        int fd = atoi(entry->d_name);

        if (entry->d_name[0] == '.' || fd == dirfd(folder))
            continue;
        f(fd, ctx);
        n++;
    }
    closedir(folder);
    return n;
}

static void count_nodelay(int fd, void *ctx) {
    unsigned *counts = ctx;
    int value;
    socklen_t len = sizeof(value);

    if (getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &value, &len) != 0)
        return;
    counts[0] += value != 0;
    counts[1]++;
}

static void ignore(int fd, void *ctx) {
    (void)fd;
    (void)ctx;
}

static void command_use(char **words) {
    size_t rss = 0;

    (void)words;
    uv_resident_set_memory(&rss);
    printf("use %d %zu %lu %lu\n", each_descriptor(ignore, NULL), rss / 1024, opened, closed);
}

static void command_nodelay(char **words) {
    unsigned counts[2] = {0};

    (void)words;
    each_descriptor(count_nodelay, counts);
    printf("nodelay %u of %u\n", counts[0], counts[1]);
}

static void command_open(char **words) {
    open_link(make_probe(words[1], words[2]), words + 3);
}

static void command_cycle(char **words) {
    struct probe *p = make_probe(words[2], words[1]);

    p->cycles = strtoul(words[2], NULL, 10);
    open_link(p, words + 3);
}

static void command_close(char **words) {
    struct probe *p = find(words[1]);

    if (p->link != NULL)
        close_link(p);
}

static void command_queued(char **words) {
    printf("queued %s %zu\n", words[1], nl_link_queued(find(words[1])->link));
}

static void execute(char *line) {
    static const struct {
        const char *name;
        void (*run)(char **words);
    } commands[] = {
        {"open", command_open},     {"send", command_send},       {"queued", command_queued},
        {"digest", command_digest}, {"close", command_close},     {"cycle", command_cycle},
        {"use", command_use},       {"nodelay", command_nodelay},
    };
    char *words[16] = {NULL}, *rest = line;

    for (size_t n = 0; n < 15 && rest != NULL; n++)
        words[n] = strsep(&rest, " ");
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++)
        if (strcmp(commands[i].name, words[0]) == 0)
            commands[i].run(words);
}

/* ---- the program ---- */

static void allocate(uv_handle_t *handle, size_t suggested, uv_buf_t *out) {
    static char chunk[4096];

    (void)handle;
    (void)suggested;
    *out = uv_buf_init(chunk, sizeof(chunk));
}

static void on_input(uv_stream_t *stream, ssize_t n, const uv_buf_t *bytes) {
    static char line[4096];
    static size_t len;

    if (n < 0) {
        uv_close((uv_handle_t *)stream, NULL);
        nl_link_context_close(context);
        return;
    }
    for (ssize_t i = 0; i < n; i++) {
        assert(len < sizeof(line));
        line[len++] = bytes->base[i] == '\n' ? '\0' : bytes->base[i];
        if (bytes->base[i] != '\n')
            continue;
        len = 0;
        execute(line);
    }
    fflush(stdout);
}

int main(void) {
    const char *why = NULL;
    int status;

    signal(SIGPIPE, SIG_IGN);
    setvbuf(stdout, NULL, _IOLBF, 0);
    uv_loop_init(&loop);
    context = nl_link_context_new(&loop, &why);
    if (context == NULL) {
        fprintf(stderr, "%s\n", why);
        return 1;
    }
    uv_pipe_init(&loop, &input, 0);
    uv_pipe_open(&input, 0);
    uv_read_start((uv_stream_t *)&input, allocate, on_input);
    uv_run(&loop, UV_RUN_DEFAULT);
    nl_link_context_free(context);
    while (probes != NULL)
        free_probe(probes);
    status = uv_loop_close(&loop);
    printf("end %d %lu %lu\n", status, opened, closed);
    return status == 0 && opened == closed ? 0 : 1;
}
