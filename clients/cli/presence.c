/* SPDX-License-Identifier: Apache-2.0 */
/*
 * nolag presence: shows a presence as long as it runs, or looks at a room; nolag lobby: looks at all rooms of
 * a lobby. A look is one line an actor, and a line of an event has the event in front.
 */
#include "clients/cli/verbs.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "clients/cli/json.h"
#include "clients/cli/output.h"
#include "clients/cli/request.h"
#include "clients/cli/talk.h"
#include "protocol/request.h"
#include "protocol/topic.h"

/* ---- what is shown ---- */

/* Fields of a line, with tabs between them; those that are empty are left out. */
static void field(struct nl_buffer *out, struct nl_slice value, bool text) {
    char *readable;

    if (value.len == 0)
        return;
    if (out->len > 0)
        nl_buffer_append_byte(out, '\t');
    if (!text) {
        nl_buffer_append(out, value.ptr, value.len);
        return;
    }
    readable = nolag_text(value);
    nl_buffer_append_str(out, readable);
    free(readable);
}

/* event, room: may be empty; actor, room: as JSON. */
static enum nolag_exit show_line(struct nl_slice event, struct nl_slice room, struct nl_slice actor,
                                 struct nl_slice presence) {
    enum nolag_exit code;
    struct nl_buffer out;

    nl_buffer_init(&out);
    field(&out, event, true);
    field(&out, room, true);
    field(&out, actor, true);
    field(&out, presence, false);
    code = nolag_output_line(nl_slice(out.bytes, out.len));
    nl_buffer_deinit(&out);
    return code;
}

static const struct nl_slice none;

static enum nolag_exit show_list(const struct nolag_options *o, const struct nolag_event *e) {
    enum nolag_exit code = NOLAG_OK;
    struct nolag_json_walk walk;
    struct nl_slice item;

    if (o->json)
        return nolag_output_line(e->line);
    if (e->data.len && nolag_json_walk(&walk, e->data))
        while (code == NOLAG_OK && nolag_json_item(&walk, &item))
            code = show_line(none, none, nolag_json_find(item, "actorTokenId"),
                             nolag_json_find(item, "presence"));
    return code;
}

static enum nolag_exit show_event(const struct nolag_options *o, const struct nolag_event *e) {
    if (o->json)
        return nolag_output_line(e->line);
    return show_line(nolag_json_find(e->line, "event"), none, nolag_json_find(e->line, "actorTokenId"),
                     nolag_json_find(e->data, "presence"));
}

/* The names of rooms and actors are keys here: their text between the quotes, escapes and all. */
static enum nolag_exit show_lobby_room(struct nl_slice room, struct nl_slice actors) {
    enum nolag_exit code = NOLAG_OK;
    struct nl_slice actor, entry;
    struct nolag_json_walk walk;

    if (nolag_json_walk(&walk, actors))
        while (code == NOLAG_OK && nolag_json_member(&walk, &actor, &entry))
            code = show_line(none, room, actor, nolag_json_find(entry, "presence"));
    return code;
}

static enum nolag_exit show_lobby(const struct nolag_options *o, const struct nolag_event *e) {
    struct nl_slice rooms = nolag_json_find(e->line, "presence"), room, actors;
    enum nolag_exit code = NOLAG_OK;
    struct nolag_json_walk walk;

    if (o->json)
        return nolag_output_line(e->line);
    if (rooms.len && nolag_json_walk(&walk, rooms))
        while (code == NOLAG_OK && nolag_json_member(&walk, &room, &actors))
            code = show_lobby_room(room, actors);
    return code;
}

static enum nolag_exit show_lobby_event(const struct nolag_options *o, const struct nolag_event *e) {
    struct nl_slice event = nolag_json_find(e->line, "event");

    if (o->json)
        return nolag_output_line(e->line);
    return show_line(event, nolag_json_find(e->line, "roomId"), nolag_json_find(e->line, "actorId"),
                     nolag_json_is(event, "leave") ? none : e->data);
}

static enum nolag_exit say_set(const struct nolag_options *o, const struct nolag_event *e) {
    if (o->debug && !e->pending.len)
        nolag_say("the presence is set");
    return o->json ? nolag_output_line(e->line) : NOLAG_OK;
}

/* ---- what is asked ---- */

struct command {
    const char *name, *request, *key, *event;
    bool stays;
    enum nolag_exit (*on_answer)(const struct nolag_options *o, const struct nolag_event *e);
    enum nolag_exit (*on_event)(const struct nolag_options *o, const struct nolag_event *e);
};

static const struct command presence_commands[] = {
    {"set", "presence", "roomId", NULL, true, say_set, NULL},
    {"get", "getPresence", "roomId", NULL, false, show_list, NULL},
    {"watch", "watchPresence", "roomId", "presence", true, show_list, show_event},
    {0},
};

static const struct command lobby_commands[] = {
    {"get", "getLobbyPresence", "lobbyId", NULL, false, show_lobby, NULL},
    {"watch", "lobbySubscribe", "lobbyId", "lobbyPresence", true, show_lobby, show_lobby_event},
    {0},
};

static bool is_name(const char *name) {
    size_t len = strlen(name);

    for (size_t i = 0; i < len; i++)
        if (!nl_topic_letter((uint8_t)name[i]))
            return false;
    return len > 0 && len <= NL_NAME_MAX;
}

static const struct command *find(const struct command *commands, const char *name) {
    for (; commands->name; commands++)
        if (strcmp(commands->name, name) == 0)
            return commands;
    return NULL;
}

/* The message of `set`: an object. */
static bool is_object(const char *message) {
    struct nl_slice text = nolag_json_trim(nl_slice_str(message));

    return text.len > 0 && text.ptr[0] == '{' && nolag_json_check(text) == NOLAG_JSON_VALUE;
}

static enum nolag_exit check(const struct nolag_verb *verb, const struct nolag_options *o,
                             const struct command *command) {
    bool sets = command && strcmp(command->name, "set") == 0;

    if (!command && o->args[0])
        return nolag_options_misused(verb, "there is no \"%.80s\"", o->args[0]);
    if (!command)
        return nolag_options_misused(verb, "what to do?");
    if (!o->args[1])
        return nolag_options_misused(verb, "which %s?", verb->name[0] == 'l' ? "lobby" : "room");
    if (o->args[2])
        return nolag_options_misused(verb, "unexpected argument \"%.80s\"; data is -m DATA", o->args[2]);
    if (!is_name(o->args[1]))
        return nolag_options_misused(verb, "\"%.80s\" is no name: 1 to 128 letters, digits and _ : -",
                                     o->args[1]);
    if (sets && !o->message)
        return nolag_options_misused(verb, "what to show? -m DATA");
    if (!sets && o->message)
        return nolag_options_misused(verb, "-m is for set");
    if (sets && !is_object(o->message))
        return nolag_options_misused(verb,
                                     "-m: presence data is a JSON object, such as '{\"status\":\"online\"}'");
    return NOLAG_OK;
}

static enum nolag_exit run(const struct nolag_verb *verb, const struct nolag_options *o,
                           const struct command *commands) {
    const struct command *command = o->args[0] ? find(commands, o->args[0]) : NULL;
    enum nolag_exit code = check(verb, o, command);
    struct nolag_talk talk = {.o = o};
    struct nl_buffer request;

    if (code != NOLAG_OK)
        return code;
    talk.stays = command->stays;
    talk.event = command->event;
    talk.on_answer = command->on_answer;
    talk.on_event = command->on_event;
    nl_buffer_init(&request);
    nolag_request_begin(&request, command->request, 1);
    nolag_request_text(&request, command->key, o->args[1]);
    if (o->message) {
        nolag_request_key(&request, "data");
        nolag_json_compact(&request, nl_slice_str(o->message));
    }
    nolag_request_end(&request);
    code = nolag_talk(&talk, nl_slice(request.bytes, request.len));
    nl_buffer_deinit(&request);
    return code;
}

static enum nolag_exit run_presence(const struct nolag_options *o) {
    return run(&nolag_verb_presence, o, presence_commands);
}

static enum nolag_exit run_lobby(const struct nolag_options *o) {
    return run(&nolag_verb_lobby, o, lobby_commands);
}

#define LOOK_FLAGS                                                                                           \
    {'C', "count",  "COUNT", "watch: end after that many events", NOLAG_FLAG_INTEGER, NOLAG_AT(count),       \
     1,   INT64_MAX},                                                                                        \
        {0, "quiet", NULL, "no notes on stderr, only errors", NOLAG_FLAG_BOOL, NOLAG_AT(quiet)},             \
        {0, "json", NULL, "show what nolagd says as JSON", NOLAG_FLAG_BOOL, NOLAG_AT(json)},                 \
        {0,                                                                                                  \
         "session",                                                                                          \
         "NAME",                                                                                             \
         "the session to use (default: nolagd's default session)",                                           \
         NOLAG_FLAG_TEXT,                                                                                    \
         NOLAG_AT(session)},                                                                                 \
        {'W',                                                                                                \
         "timeout",                                                                                          \
         "SECONDS",                                                                                          \
         "end after that long (fractions allowed)",                                                          \
         NOLAG_FLAG_SECONDS,                                                                                 \
         NOLAG_AT(timeout)},                                                                                 \
    {                                                                                                        \
        0                                                                                                    \
    }

static const struct nolag_flag presence_flags[] = {
    {'m', "message", "DATA", "set: what to show, a JSON object", NOLAG_FLAG_TEXT, NOLAG_AT(message)},
    {'d', "debug", NULL, "set: tell when it is set", NOLAG_FLAG_BOOL, NOLAG_AT(debug)},
    LOOK_FLAGS,
};

static const struct nolag_flag lobby_flags[] = {LOOK_FLAGS};

const struct nolag_verb nolag_verb_presence = {
    .name = "presence",
    .summary = "Shows a presence in a room, or who is there.",
    .usage = "set|get|watch ROOM [-m DATA] [flags]",
    .notes = "set    shows DATA until it ends: after -W seconds, or on Ctrl-C\n"
             "get    lists who is in the room: the actor and what it shows, a tab between them\n"
             "watch  the same, then what changes, with join, update or leave in front\n\n"
             "  nolag presence set ops -m '{\"status\":\"online\"}'\n"
             "  nolag presence watch ops\n",
    .run = run_presence,
    .flags = presence_flags,
    .takes_args = true,
};

const struct nolag_verb nolag_verb_lobby = {
    .name = "lobby",
    .summary = "Shows who is in the rooms of a lobby.",
    .usage = "get|watch LOBBY [flags]",
    .notes = "get    lists who is there: the room, the actor and what it shows, tabs between them\n"
             "watch  the same, then what changes, with join, update or leave in front\n\n"
             "  nolag lobby watch all\n",
    .run = run_lobby,
    .flags = lobby_flags,
    .takes_args = true,
};
