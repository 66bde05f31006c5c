# SPDX-License-Identifier: Apache-2.0
"""The token file: who may connect, and what each token may do."""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Optional

PERMISSIONS = {
    "pubSub": frozenset({"publish", "subscribe"}),
    "publish": frozenset({"publish"}),
    "subscribe": frozenset({"subscribe"}),
}


class AuthFileError(Exception):
    """The token file cannot be used; the text says why."""


def matches(pattern: list[str], topic: list[str]) -> bool:
    """MQTT wildcards: `+` is one level, a final `#` is any number, also none.

    a/#   matches a, a/b, a/b/c
    a/+   matches a/b, not a, not a/b/c
    """
    for index, part in enumerate(pattern):
        if part == "#":
            return True
        if index >= len(topic) or part not in ("+", topic[index]):
            return False
    return len(pattern) == len(topic)


@dataclass(frozen=True)
class Rule:
    pattern: list[str]
    rights: frozenset


@dataclass(frozen=True)
class Grant:
    """What one token stands for."""

    token: str
    actor: str
    project: str
    actor_type: str
    rate_limit: int
    rules: list[Rule]
    rooms: dict[str, tuple[str, str]] = field(default_factory=dict)  # slug -> (project, room id)
    lobbies: dict[str, str] = field(default_factory=dict)  # slug -> lobby id

    def right_to(self, action: str, topic: str) -> Optional[str]:
        """None when allowed, else the name of the error."""
        parts = topic.split("/")
        rights = [rule.rights for rule in self.rules if matches(rule.pattern, parts)]
        if not rights:
            return "unknown_topic"
        return None if any(action in some for some in rights) else "not_authorized"


def _rule(entry: dict) -> Rule:
    permission = entry.get("permission", "pubSub")
    if permission not in PERMISSIONS:
        raise AuthFileError(f"permission {permission!r} is none of {', '.join(PERMISSIONS)}")
    return Rule(entry["pattern"].split("/"), PERMISSIONS[permission])


def _grant(token: str, entry: dict) -> Grant:
    project = entry.get("projectId", "")
    topics = entry.get("allowedTopics", [])
    return Grant(
        token=token,
        actor=entry["actorTokenId"],
        project=project,
        actor_type=entry.get("actorType", "user"),
        rate_limit=entry.get("rateLimit", 50),
        rules=[_rule(topic) for topic in topics],
        rooms={topic["room_slug"]: (project, topic["room_id"])
               for topic in reversed(topics) if "room_slug" in topic},
        lobbies={lobby["lobby_slug"]: lobby["lobby_id"]
                 for lobby in entry.get("allowedLobbies", [])},
    )


def _parse(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise AuthFileError(f"{path}: {error.strerror}") from error
    except ValueError as error:
        raise AuthFileError(f"{path}: not JSON: {error}") from error


def load(path: Path) -> dict[str, Grant]:
    """All tokens of the file. Raises AuthFileError."""
    document = _parse(path)
    if not isinstance(document, dict) or not isinstance(document.get("tokens"), dict):
        raise AuthFileError(f'{path}: expected an object with "tokens"')
    grants = {}
    for token, entry in document["tokens"].items():
        try:
            grants[token] = _grant(token, entry)
        except KeyError as error:
            raise AuthFileError(f"{path}: token {token!r}: {error} is missing") from error
        except (AttributeError, TypeError) as error:
            raise AuthFileError(f"{path}: token {token!r}: wrong type inside") from error
        except AuthFileError as error:
            raise AuthFileError(f"{path}: token {token!r}: {error}") from error
    return grants
