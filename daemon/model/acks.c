/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/acks.h"

#include <stdlib.h>
#include <utlist.h>

#include "protocol/alloc.h"
#include "protocol/utf8.h"

/* How soon to try again when the link took no more. */
#define FULL_RETRY_MS 20

void nl_acks_init(struct nl_acks *a, const struct nl_acks_ops *ops) {
    *a = (struct nl_acks){.ops = *ops};
    nl_buffer_init(&a->scratch);
}

static void drop_ready(struct nl_acks *a) {
    struct nl_receipt *r = a->ready;

    DL_DELETE(a->ready, r);
    a->ready_count--;
    free(r);
}

static void drop_sent(struct nl_acks *a) {
    struct nl_receipt *r = a->sent;

    DL_DELETE(a->sent, r);
    a->sent_count--;
    free(r);
}

void nl_acks_deinit(struct nl_acks *a) {
    struct nl_receipt *r, *tmp;

    while (a->ready != NULL)
        drop_ready(a);
    while (a->sent != NULL)
        drop_sent(a);
    DL_FOREACH_SAFE(a->open, r, tmp) {
        DL_DELETE(a->open, r);
        r->acks = NULL;
    }
    nl_buffer_deinit(&a->scratch);
}

/* The last hold is gone. */
static void on_done(struct nl_line_watch *watch) {
    struct nl_receipt *r = (struct nl_receipt *)(void *)watch;
    struct nl_acks *a = r->acks;

    if (a == NULL) {
        free(r);
        return;
    }
    DL_DELETE(a->open, r);
    if (!watch->taken) {
        a->nobody++;
        free(r);
        return;
    }
    DL_APPEND(a->ready, r);
    if (++a->ready_count > NL_ACKS_MAX) {
        drop_ready(a);
        a->forgotten++;
    }
    if (a->ready_count == 1 || a->ready_count == NL_ACK_BATCH)
        a->ops.wake(a->ops.ctx);
}

static bool is_utf8(struct nl_slice s) {
    for (size_t i = 0; i < s.len;) {
        int step = nl_utf8_step(s.ptr + i, s.len - i);

        if (step <= 0)
            return false;
        i += (size_t)step;
    }
    return true;
}

struct nl_receipt *nl_acks_expect(struct nl_acks *a, const struct nl_frame *message) {
    struct nl_receipt *r;

    if (!NL_FRAME_HAS(message, requires_ack) || !message->requires_ack || !NL_FRAME_HAS(message, msg_id) ||
        message->msg_id.len == 0 || !is_utf8(message->msg_id))
        return NULL;
    r = nl_calloc(1, sizeof(*r) + message->msg_id.len);
    r->watch = (struct nl_line_watch){.holds = 1, .done = on_done};
    r->acks = a;
    r->len = message->msg_id.len;
    memcpy(r->msg_id, message->msg_id.ptr, r->len);
    DL_APPEND(a->open, r);
    return r;
}

struct nl_receipt *nl_receipt_hold(struct nl_receipt *receipt) {
    if (receipt != NULL)
        receipt->watch.holds++;
    return receipt;
}

void nl_receipt_release(struct nl_receipt *receipt, bool got) {
    if (receipt != NULL)
        nl_line_watch_release(&receipt->watch, got);
}

static void note_sent(struct nl_acks *a) {
    struct nl_receipt *r = a->ready;

    DL_DELETE(a->ready, r);
    a->ready_count--;
    r->heartbeat = a->heartbeats;
    DL_APPEND(a->sent, r);
    if (++a->sent_count > NL_ACKS_MAX)
        drop_sent(a);
}

static bool send_batch(struct nl_acks *a) {
    uint32_t n = a->ready_count < NL_ACK_BATCH ? (uint32_t)a->ready_count : NL_ACK_BATCH, left = n;
    struct nl_frame frame = {.type = NL_FRAME_BATCH_ACK};
    const struct nl_receipt *r;

    nl_buffer_clear(&a->scratch);
    nl_pack_array(&a->scratch, n);
    DL_FOREACH(a->ready, r) {
        if (left-- == 0)
            break;
        nl_pack_str(&a->scratch, nl_slice(r->msg_id, r->len));
    }
    NL_FRAME_SET(&frame, msg_ids, nl_slice(a->scratch.bytes, a->scratch.len));
    if (!a->ops.send(a->ops.ctx, &frame))
        return false;
    while (n-- > 0)
        note_sent(a);
    return true;
}

void nl_acks_run(struct nl_acks *a, bool up, uint64_t now_ms) {
    if (!up)
        return;
    if (a->ready != NULL && a->due_ms == 0)
        a->due_ms = now_ms + NL_ACK_DELAY_MS;
    while (a->ready != NULL && (a->ready_count >= NL_ACK_BATCH || a->due_ms <= now_ms)) {
        if (!send_batch(a)) {
            a->due_ms = now_ms + FULL_RETRY_MS;
            return;
        }
    }
    if (a->ready == NULL)
        a->due_ms = 0;
}

uint64_t nl_acks_next(const struct nl_acks *a, bool up) {
    return up && a->ready != NULL ? a->due_ms : UINT64_MAX;
}

void nl_acks_heartbeat(struct nl_acks *a, uint64_t number) {
    a->heartbeats = number;
}

void nl_acks_echo(struct nl_acks *a, uint64_t number) {
    while (a->sent != NULL && a->sent->heartbeat < number)
        drop_sent(a);
}

void nl_acks_down(struct nl_acks *a) {
    DL_CONCAT(a->sent, a->ready);
    a->ready = a->sent;
    a->ready_count += a->sent_count;
    a->sent = NULL;
    a->sent_count = a->heartbeats = a->due_ms = 0;
    while (a->ready_count > NL_ACKS_MAX) {
        drop_ready(a);
        a->forgotten++;
    }
}

void nl_acks_flush(struct nl_acks *a) {
    while (a->ready != NULL && send_batch(a))
        ;
}
