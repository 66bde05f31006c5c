/* SPDX-License-Identifier: Apache-2.0 */
#include "daemon/model/presence_lines.h"

#include "protocol/frame.h"
#include "protocol/hash.h"
#include "protocol/scan.h"

static bool is(struct nl_slice name, const char *text) {
    return nl_slice_equal(name, nl_slice_str(text));
}

static bool is_id(struct nl_slice name) {
    return is(name, "actorTokenId") || is(name, "actor_token_id");
}

bool nl_raw_is_null(struct nl_slice raw) {
    return raw.len == 0 || raw.ptr[0] == 0xc0;
}

bool nl_actor_read(struct nl_slice raw, struct nl_actor *out) {
    struct nl_slice key, value, name;
    struct nl_raw_iter it;

    *out = (struct nl_actor){.whole = raw};
    if (!nl_raw_map(raw, &it))
        return false;
    while (nl_raw_next_pair(&it, &key, &value)) {
        if (!nl_raw_string(key, &name))
            continue;
        if (is_id(name))
            nl_raw_string(value, &out->id);
        else if (is(name, "presence"))
            out->presence = value;
        else if (is(name, "status"))
            nl_raw_string(value, &out->status);
    }
    return out->id.len > 0;
}

uint64_t nl_actor_digest(const struct nl_actor *actor, uint64_t seed) {
    struct nl_slice status = actor->status.len > 0 ? actor->status : nl_slice_str("online");
    uint64_t digest = actor->presence.len > 0 ? nl_digest(actor->presence, seed) : 0;

    return nl_hash_mix(digest, nl_hash_bytes(seed, status.ptr, status.len));
}

void nl_actor_write(struct nl_object *o, const char *key, const struct nl_actor *actor, struct nl_slice room,
                    struct nl_json_options options) {
    struct nl_slice name_raw, value, name;
    struct nl_raw_iter it;

    nl_object_open(o, key, '{');
    nl_object_str(o, "actorTokenId", actor->id);
    if (room.len > 0)
        nl_object_str(o, "roomId", room);
    if (nl_raw_map(actor->whole, &it))
        while (nl_raw_next_pair(&it, &name_raw, &value)) {
            if (nl_raw_string(name_raw, &name) && !is_id(name) && !(room.len > 0 && is(name, "roomId")))
                nl_object_member(o, name, value, options);
        }
    nl_object_close(o, '}');
}

struct nl_line *nl_presence_event_line(struct nl_slice event, struct nl_slice room,
                                       const struct nl_actor *actor, struct nl_json_options options) {
    struct nl_object o;

    nl_object_begin(&o, "presence");
    nl_object_str(&o, "event", event);
    nl_object_str(&o, "roomId", room);
    nl_object_str(&o, "actorTokenId", actor->id);
    nl_actor_write(&o, "data", actor, nl_slice(NULL, 0), options);
    return nl_object_line(&o);
}
