/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every error that nolagd itself can tell a local client: its name on the wire, its
 * code and the hint that says what to do. PROTOCOL.md has the same table, and a test
 * holds the two together. Errors of the broker are passed on with the broker's own
 * names, codes and hints and are not listed here, except those that nolagd also finds
 * by itself; these keep the broker's name and code (0 = the broker gives none).
 *
 * nolagd's own codes are the block 43000 to 43999.
 */
#ifndef NL_PROTOCOL_ERRORS_H
#define NL_PROTOCOL_ERRORS_H

/* X(enumerator, code, wire name, default hint) */
#define NL_ERRORS(X)                                                                                         \
    X(BAD_JSON, 43000, "bad_json", "send one JSON object per line, ended by a newline")                      \
    X(LINE_TOO_LONG, 43001, "line_too_long", "the line was skipped to its end; see limits.line in welcome")  \
    X(TOO_DEEP, 43002, "too_deep", "nest arrays and objects less deeply; see limits.depth in welcome")       \
    X(BAD_UTF8, 43003, "bad_utf8", "lines are UTF-8; send other bytes as {\"$bytes\":\"base64\"}")           \
    X(UNKNOWN_TYPE, 43004, "unknown_type", "see PROTOCOL.md for the request types")                          \
    X(TOO_MANY_VALUES, 43005, "too_many_values",                                                             \
      "the line holds too many JSON values; see limits.values in welcome")                                   \
    X(MISSING_FIELD, 43010, "missing_field", "this request needs the named field")                           \
    X(BAD_FIELD, 43011, "bad_field", "the named field has a wrong type or is out of range")                  \
    X(BAD_TOPIC, 43012, "bad_topic",                                                                         \
      "topics are app/room/topic or app/scope/room/topic, each part of [a-zA-Z0-9_:-]")                      \
    X(BAD_FILTER, 43013, "bad_filter",                                                                       \
      "a filter is a non-empty string without / # + |, or a list of two or more of these")                   \
    X(TOO_MANY_FILTERS, 43014, "too_many_filters", "a topic takes at most 100 filters")                      \
    X(BAD_PAYLOAD, 43015, "bad_payload",                                                                     \
      "data holds something that MessagePack cannot carry, or a malformed $ tag")                            \
    X(MESSAGE_TOO_LARGE, 42930, "message_too_large", "the packed data is larger than the broker takes")      \
    X(NOT_AUTHENTICATED, 0, "not_authenticated", "the auth of this connection failed; connect again")        \
    X(ACCESS_DENIED, 0, "access_denied", "the broker refuses this token")                                    \
    X(NOT_SUBSCRIBED, 0, "not_subscribed", "subscribe to the topic first")                                   \
    X(UNKNOWN_SESSION, 43020, "unknown_session", "no session of this name is configured; see sessions")      \
    X(ALREADY_ATTACHED, 43021, "already_attached", "auth comes once, before anything else")                  \
    X(NOT_PERMITTED, 43030, "not_permitted", "the access rules of this daemon do not allow it")              \
    X(LIMIT_REACHED, 43031, "limit_reached", "a limit of this daemon is reached; close what is not needed")  \
    X(TOO_MANY_CLIENTS, 43032, "too_many_clients",                                                           \
      "the daemon serves as many clients as it may; try again later")                                        \
    X(WISH_CONFLICT, 43040, "wish_conflict", "one broker connection cannot serve both wishes")               \
    X(UNKNOWN_ROOM, 43041, "unknown_room", "the broker passed the presence over: it knows no such room")     \
    X(NOT_WATCHED, 43042, "not_watched", "this client does not watch that room")                             \
    X(NOT_PRESENT, 43043, "not_present", "this client has set no presence there")                            \
    X(UNKNOWN_ACK, 43044, "unknown_ack",                                                                     \
      "this client has no message with this id to acknowledge; only \"ack\":\"manual\" gives it such")       \
    X(OUTBOX_FULL, 43050, "outbox_full", "too much waits to be sent; try again after retryAfterMs")          \
    X(TIMEOUT, 43051, "timeout", "the broker was not reached or did not answer in time")                     \
    X(BROKER_IGNORED, 43052, "broker_ignored", "the broker passed this request over without an answer")      \
    X(BROKER_REJECTED, 43053, "broker_rejected",                                                             \
      "this request makes the broker close the connection; it is not sent again")                            \
    X(BINARY_REFUSED, 43054, "binary_refused", "this broker cannot carry bytes that are not UTF-8")          \
    X(SLOW_CONSUMER, 43060, "slow_consumer", "read faster, subscribe to less, or raise client_output_limit") \
    X(SHUTTING_DOWN, 43061, "shutting_down", "the daemon is stopping; connect again")                        \
    X(NOT_SUPPORTED, 43070, "not_supported",                                                                 \
      "this version of nolagd does not do this; see features in welcome")

enum nl_error {
    NL_OK = 0,
#define X(name, code, wire, hint) NL_ERROR_##name,
    NL_ERRORS(X)
#undef X
};

const char *nl_error_name(enum nl_error e); /* wire name, static */
int nl_error_code(enum nl_error e);         /* 0 = the answer has no code */
const char *nl_error_hint(enum nl_error e); /* static */

#endif
