"""Make, list and revoke tokens: what operators ask of a node.

Both changes are conditional on the record that was read before, so of two at once the second one
reads again. Both may be asked again after a lost answer: the record says by its digest whose it
is, and a token that is revoked stays so.
"""

from __future__ import annotations

from typing import Final

import msgspec

from lowmark.errors import Unavailable
from lowmark.group import Future
from lowmark.metastore import (
    Compare,
    Condition,
    Metastore,
    Operation,
    Put,
    Remove,
    Revision,
    all_of,
)
from lowmark.metastore.watches import Entry
from lowmark.node.callers import current_caller
from lowmark.node.messages import Nothing
from lowmark.node.operating import Answers
from lowmark.node.token_messages import CreateTokenAsk, RevokeTokenAsk, TokenReply, TokensReply
from lowmark.node.tokens import Tokens, token_of
from lowmark.tokens import (
    TOKEN_PREFIX,
    NoSuchToken,
    Record,
    State,
    Token,
    TokenExists,
    TokensFull,
    check_name,
    token_key,
)
from lowmark.tokens.records import check_digest, check_ttl

TOKENS_MAX: Final = 10_000
KEPT_MS: Final = 30 * 86_400_000
"""A token that has ended is listed for so long, and those who show it hear how it ended."""
_SWEPT_MAX: Final = 16
"""With each new token, a node removes up to this many that ended long ago."""
_ATTEMPTS: Final = 5


class TokenActions:
    """One node's. All calls on the loop."""

    def __init__(self, metastore: Metastore, tokens: Tokens) -> None:
        self._metastore = metastore
        self._tokens = tokens

    @property
    def answers(self) -> Answers:
        """By name."""
        return {
            "token.create": (CreateTokenAsk, self.create),
            "token.list": (Nothing, self.all),
            "token.revoke": (RevokeTokenAsk, self.revoke),
        }

    # -- looking ----------------------------------------------------------------------------------

    def all(self, _: Nothing) -> Future[TokensReply]:
        """All of clients."""
        return self._metastore.range(TOKEN_PREFIX).map(
            lambda page: TokensReply(
                tokens=tuple(map(self._shown, filter(None, map(token_of, page.entries))))
            )
        )

    def _shown(self, token: Token) -> TokenReply:
        record, revoked = token.record, token.record.revoked_by is not None
        return TokenReply(
            name=token.name,
            role=record.role,
            state=token.state(self._now_ms()),
            created_ms=token.created_ms,
            expires_ms=token.expires_ms,
            by=record.by,
            revoked_ms=token.written_ms if revoked else None,
            revoked_by=record.revoked_by,
        )

    def _now_ms(self) -> int:
        self._tokens.see_time()
        return self._tokens.now_ms()

    def _tell(self, whole: Future[TokenReply], token: Token) -> None:
        """When it is so for callers of this node: the others hear of it at about the same time."""
        known = self._tokens.when_known(token.revision)
        known.then(lambda _: whole.resolve(self._shown(token)))

    # -- changing ---------------------------------------------------------------------------------

    def create(self, asked: CreateTokenAsk) -> Future[TokenReply]:
        """Let in those who show the token of a digest."""
        check_name(asked.name)
        check_digest(asked.digest)
        check_ttl(asked.ttl_ms)
        whole: Future[TokenReply] = Future()
        record = Record(digest=asked.digest, ttl_ms=asked.ttl_ms, by=current_caller().token)
        self._create(asked.name, record, whole, attempts=_ATTEMPTS, sweep=True)
        return whole

    def _create(
        self, name: str, record: Record, whole: Future[TokenReply], *, attempts: int, sweep: bool
    ) -> None:
        key = token_key(name)

        def found(future: Future[Entry | None]) -> None:
            if future.error is not None:
                whole.reject(future.error)
                return
            entry = future.result()
            token = None if entry is None else token_of(entry)
            state = None if token is None else token.state(self._now_ms())
            if token is not None and token.record.digest == record.digest:
                self._tell(whole, token)  # it was asked before, and was done
            elif state is State.IN_FORCE:
                whole.reject(TokenExists(name))
            elif not attempts:
                whole.reject(_too_many_changes(name))
            else:
                write(0 if entry is None else entry.revision)

        def write(revision: int) -> None:
            conditions: list[Condition] = [Revision(key, Compare.EQ, revision)]
            operations: list[Operation] = [Put(key, record.encode())]
            ended = self._ended(but=name)
            if len(self._tokens.table.clients) - len(ended) >= TOKENS_MAX:
                whole.reject(TokensFull(TOKENS_MAX))
                return
            for one in ended[:_SWEPT_MAX] if sweep else ():
                gone = token_key(one.name)
                conditions.append(Revision(gone, Compare.EQ, one.revision))
                operations.append(Remove(gone))
            self._metastore.invoke_if(all_of(*conditions), operations).then(written)

        def written(future: Future[bool]) -> None:
            if future.error is not None:
                whole.reject(future.error)
            else:  # read it, or what was faster; if one to be removed has changed, without it
                self._create(name, record, whole, attempts=attempts - 1, sweep=False)

        self._metastore.get(key).then(found)

    def _ended(self, *, but: str) -> list[Token]:
        """Those that ended so long ago that no one asks for them any more, as this node knows."""
        now_ms, found = self._now_ms(), list[tuple[int, Token]]()
        for one in self._tokens.table.clients:
            ended_ms = one.ended_ms(now_ms)
            if ended_ms is not None and now_ms - ended_ms > KEPT_MS:
                if one.name != but:
                    found.append((ended_ms, one))
        return [one for _, one in sorted(found, key=lambda pair: (pair[0], pair[1].name))]

    def revoke(self, asked: RevokeTokenAsk) -> Future[TokenReply]:
        """Let in no one any more who shows it."""
        check_name(asked.name)
        whole: Future[TokenReply] = Future()
        self._revoke(asked.name, current_caller().token, whole, attempts=_ATTEMPTS)
        return whole

    def _revoke(self, name: str, by: str, whole: Future[TokenReply], *, attempts: int) -> None:
        key = token_key(name)

        def found(future: Future[Entry | None]) -> None:
            if future.error is not None:
                whole.reject(future.error)
                return
            entry = future.result()
            token = None if entry is None else token_of(entry)
            if entry is None or token is None:
                whole.reject(NoSuchToken(name))
            elif token.record.revoked_by is not None:
                self._tell(whole, token)
            elif not attempts:
                whole.reject(_too_many_changes(name))
            else:
                revoked = msgspec.structs.replace(
                    token.record, revoked_by=by, created_ms=token.created_ms
                )
                unchanged = Revision(key, Compare.EQ, entry.revision)
                self._metastore.invoke_if(unchanged, [Put(key, revoked.encode())]).then(written)

        def written(future: Future[bool]) -> None:
            if future.error is not None:
                whole.reject(future.error)
            else:
                self._revoke(name, by, whole, attempts=attempts - 1)

        self._metastore.get(key).then(found)


def _too_many_changes(name: str) -> Unavailable:
    return Unavailable(
        f"token {name} was changed again and again by others", hint="Retry in a moment."
    )
