# SPDX-License-Identifier: Apache-2.0
"""What the broker does with each type of frame: a table of handlers.

A handler returns the answer, or None when there is none. It may raise Refused
(an error frame answers) or Poison (the connection is closed with 1011).
"""

from typing import Any, Callable, Optional

from . import codec, poison
from .broker import Broker
from .errors import Refused, error_frame, has_ref
from .filters import published_key, subscribed_keys
from .session import Request, Session
from .topics import Subscription

Answer = Optional[dict]
DEFAULT_GROUP = "default"


def handle(broker: Broker, session: Session, request: Request) -> Optional[bytes]:
    """The packed answer to one frame, None when there is none. Raises Poison."""
    if request.type == "heartbeat" and session.grant is not None:
        return b""
    answer = _answer(broker, session, request)
    return None if answer is None else codec.write(answer)


def _answer(broker: Broker, session: Session, request: Request) -> Answer:
    if session.grant is None:
        return _before_auth(broker, session, request)
    frame = request.frame
    handler, required = HANDLERS.get(request.type, (None, ()))
    if handler is None or any(name not in frame for name in required):
        return None
    poison.check(request.type, frame)
    try:
        _check_fault(broker, session, request)
        return handler(broker, session, frame)
    except Refused as refused:
        return error_frame(refused, frame, session.version)


def _check_fault(broker: Broker, session: Session, request: Request) -> None:
    action = broker.faults.take("refuse", session, request)
    if action is not None:
        raise Refused(action["error"], **action["fields"])


# Authentication


def _before_auth(broker: Broker, session: Session, request: Request) -> Answer:
    if request.type == "garbage":
        return None
    if request.type != "auth":
        return {"type": "error", "error": "not_authenticated"}
    return _auth(broker, session, request)


def _auth(broker: Broker, session: Session, request: Request) -> dict:
    frame = request.frame
    token = frame.get("token")
    session.token = token if isinstance(token, str) else None
    refusal = broker.faults.take("auth", session, request)
    grant = broker.grants.get(session.token or "")
    if refusal is not None or grant is None:
        error = refusal["error"] if refusal else "access_denied"
        return {"type": "auth", "success": False, "error": error}
    session.grant = grant
    session.reconnect = frame.get("reconnect") is True
    session.version = _version(frame, broker.settings.protocolVersion)
    return {"type": "auth", "success": True, "actorTokenId": grant.actor,
            "projectId": grant.project, "actorType": grant.actor_type,
            "protocolVersion": session.version,
            "restoredSubscriptions": _restore(broker, session)}


def _version(frame: dict, ours: int) -> int:
    asked = frame.get("protocolVersion", 1)
    return min(asked, ours) if isinstance(asked, int) else 1


def _restore(broker: Broker, session: Session) -> list:
    """Renew stored subscriptions; kraken, with tokens from a file, stores none."""
    entries = broker.faults.restored.get(session.token or "")
    if entries is None:
        stored = broker.stored.get(session.grant.actor, {})
        entries = list(stored.values()) if session.reconnect else []
    if broker.flavor == "kraken" and any(map(_has_group, entries)):
        raise poison.Poison("restored AND group")
    for entry in entries:
        _restore_one(broker, session, entry)
    return entries


def _has_group(entry: Any) -> bool:
    return isinstance(entry, dict) and any(isinstance(value, list)
                                           for value in _filter_list(entry))


def _restore_one(broker: Broker, session: Session, entry: Any) -> None:
    frame = entry if isinstance(entry, dict) else {"topic": entry}
    topic = frame.get("topic")
    if isinstance(topic, str) and session.grant.right_to("subscribe", topic) is None:
        broker.topics.subscribe(_subscription(session, frame))


def _store(broker: Broker, session: Session, subscription: Subscription) -> None:
    if broker.flavor != "cloud":
        return
    entry: Any = {"topic": subscription.topic}
    if subscription.keys:
        entry["filters"] = subscription.filters
    if subscription.group is not None:
        entry.update(loadBalance=True, loadBalanceGroup=subscription.group)
    plain = len(entry) == 1
    actor = broker.stored.setdefault(session.grant.actor, {})
    actor[subscription.topic] = subscription.topic if plain else entry


def _check_right(session: Session, action: str, topic: str) -> None:
    error = session.grant.right_to(action, topic)
    if error is not None:
        raise Refused(error)


# Messages


def _publish(broker: Broker, session: Session, frame: dict) -> Answer:
    topic, data = frame["topic"], frame["data"]
    _check_publish(broker, session, topic, data)
    if broker.flavor == "kraken":
        data = _unwrapped(data)
    message = broker.message(session, topic, data, published_key(frame),
                             echo=frame.get("echo") is not False)
    broker.journal.note_accepted({
        "connection": session.number, "token": session.token, "topic": topic,
        "data": codec.to_json(data), "filter": message.key and codec.to_json(message.key),
        "msgRef": frame.get("msgRef"), "msgId": message.msg_id,
        "retain": frame.get("retain", False), "echo": message.echo})
    broker.topics.publish(message, retain=frame.get("retain", False))
    if session.version >= 2 and has_ref(frame):
        return {"type": "published", "topic": topic, "msgRef": frame["msgRef"]}
    return None


def _check_publish(broker: Broker, session: Session, topic: str, data: Any) -> None:
    if not session.rate.admits(broker.rate_limit(session)):
        raise Refused("rate_limit_exceeded")
    limit = broker.settings.maxSizeBytes
    if len(codec.write(data)) > limit:
        raise Refused("message_too_large", maxSizeBytes=limit)
    _check_right(session, "publish", topic)


def _unwrapped(data: Any) -> Any:
    """kraken takes payloads of these shapes for its own envelopes."""
    for mark, content in (("_msgId", "_data"), ("_sender", "data")):
        if isinstance(data, dict) and mark in data and content in data:
            data = data[content]
    return data


def _ack(broker: Broker, session: Session, frame: dict) -> None:
    broker.journal.note_ack(session, [frame["msgId"]])


def _batch_ack(broker: Broker, session: Session, frame: dict) -> None:
    broker.journal.note_ack(session, frame["msgIds"])


# Subscriptions


def _group(frame: dict) -> Optional[str]:
    if frame.get("loadBalance") is not True:
        return None
    return frame.get("loadBalanceGroup") or DEFAULT_GROUP


def _filter_list(frame: dict) -> list:
    filters = frame.get("filters")
    return filters if isinstance(filters, list) else []


def _subscription(session: Session, frame: dict) -> Subscription:
    filters = _filter_list(frame)
    return Subscription(session, frame["topic"], filters, subscribed_keys(filters), _group(frame))


def _subscribe(broker: Broker, session: Session, frame: dict) -> dict:
    topic = frame["topic"]
    subscription = _subscription(session, frame)
    _check_right(session, "subscribe", topic)
    broker.topics.unsubscribe(session, topic)
    broker.topics.subscribe(subscription)
    _store(broker, session, subscription)
    if topic in broker.faults.hydration:
        session.deliver({"type": "hydration", "topic": topic.rsplit("/", 1)[-1],
                         "data": broker.faults.hydration[topic]})
    return {"type": "subscribed", "topic": topic, "loadBalance": subscription.group is not None}


def _unsubscribe(broker: Broker, session: Session, frame: dict) -> dict:
    topic = frame["topic"]
    broker.topics.unsubscribe(session, topic)
    broker.stored.get(session.grant.actor, {}).pop(topic, None)
    return {"type": "unsubscribed", "topic": topic}


def _set_filters(broker: Broker, session: Session, frame: dict) -> dict:
    topic, filters = frame["topic"], _filter_list(frame)
    subscription = broker.topics.find(session, topic)
    if subscription is None:
        raise Refused("not_subscribed")
    broker.topics.set_filters(subscription, filters, subscribed_keys(filters))
    _store(broker, session, subscription)
    return {"type": "filtersUpdated", "topic": topic, "filters": filters}


# Presence


def _room(session: Session, frame: dict) -> Any:
    slug = frame.get("roomId")
    return session.grant.rooms.get(slug) if isinstance(slug, str) else None


def _presence(broker: Broker, session: Session, frame: dict) -> None:
    room, data = _room(session, frame), frame["data"]
    if room is None:
        return
    if not codec.is_clean(data):
        for member in broker.rooms.members(room):
            if member is not session:
                member.close(1011, "")
        raise poison.Poison("data")
    broker.rooms.announce(session, room, data)


def _get_presence(broker: Broker, session: Session, frame: dict) -> dict:
    if not isinstance(frame.get("roomId"), str):
        return {"type": "presenceList", "data": []}
    room = _room(session, frame)
    present = broker.rooms.by_actor(room) if room else {}
    return {"type": "presenceList", "roomId": frame["roomId"],
            "data": [{"actorTokenId": actor, "presence": presence.data,
                      "joinedAt": presence.joined_at, "status": "online"}
                     for actor, presence in present.items()]}


def _lobby(session: Session, frame: dict) -> str:
    slug = frame["lobbyId"]
    if not isinstance(slug, str) or slug not in session.grant.lobbies:
        raise Refused("not_authorized")
    return slug


def _lobby_subscribe(broker: Broker, session: Session, frame: dict) -> dict:
    slug = _lobby(session, frame)
    snapshot = broker.lobbies.subscribe(session, slug, broker.rooms)
    return {"type": "lobbySubscribed", "lobbyId": slug, "presence": snapshot}


def _lobby_unsubscribe(broker: Broker, session: Session, frame: dict) -> dict:
    slug = _lobby(session, frame)
    broker.lobbies.unsubscribe(session, slug)
    return {"type": "lobbyUnsubscribed", "lobbyId": slug}


def _get_lobby_presence(broker: Broker, session: Session, frame: dict) -> dict:
    slug = _lobby(session, frame)
    snapshot = broker.lobbies.snapshot(session, slug, broker.rooms)
    return {"type": "lobbyPresenceList", "lobbyId": slug, "presence": snapshot}


# Without one of the required fields a frame is ignored, like one of an unknown type.
HANDLERS: dict[str, tuple[Callable[[Broker, Session, dict], Answer], tuple[str, ...]]] = {
    "publish": (_publish, ("topic", "data")),
    "subscribe": (_subscribe, ("topic",)),
    "unsubscribe": (_unsubscribe, ("topic",)),
    "setFilters": (_set_filters, ("topic", "filters")),
    "ack": (_ack, ("msgId",)),
    "batchAck": (_batch_ack, ("msgIds",)),
    "presence": (_presence, ("data",)),
    "getPresence": (_get_presence, ()),
    "lobbySubscribe": (_lobby_subscribe, ("lobbyId",)),
    "lobbyUnsubscribe": (_lobby_unsubscribe, ("lobbyId",)),
    "getLobbyPresence": (_get_lobby_presence, ("lobbyId",)),
}
