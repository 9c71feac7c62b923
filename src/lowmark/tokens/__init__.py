"""Tokens: what a client shows to be let in. The form of one, its record, and the table of a node.

Words
    token    the secret: `lm1_` and 49 letters and digits. Only its holder has it
    digest   its SHA-256: what the cluster keeps
    record   what the metastore has of a token under its name: digest, role, how long it is valid
    caller   the name and the role of a token that is in force, and what it may do
    pass     what a task of Spark shows: for one table and one right, made by the token of its
             driver, in force for minutes, renewed as long as the query or the run goes on

What holds
    1. No token is kept by the cluster, sent to another node, logged or shown again. What is kept,
       its digest, lets no one in.
    2. A name has one token. Two that are created at once under one name: one of them is refused.
    3. A token is in force from the revision of its record on, until the revision that revokes it,
       or until the metastore's time is past its end: no clock of a node counts.
    4. A node lets a caller in only if it knows all that was revoked until five seconds ago. A node
       that does not hear the metastore refuses by name; only what looks at its status and repairs
       a cluster without a majority takes the tokens that the node last knew.
    5. A token that is revoked is refused within a second at every node that hears the metastore,
       in streams that are open, too.
    6. The first token is durable in a file before it is proposed: no token is in force that was
       lost in a crash, and what the file has is in force, or will be by the next start.

    7. A pass is in force only while the token is by which it was made. Its holder makes no other
       pass, and does nothing but what its right says with its table.

Everything here is pure, but `drawn`. `lowmark.node.tokens` follows the metastore and drives it.
"""

from typing import TYPE_CHECKING

from lowmark.faces import face

if TYPE_CHECKING:
    from lowmark.tokens.errors import (
        BeyondPass,
        NoSuchToken,
        PassEnded,
        PassesFull,
        TokenExists,
        TokenExpired,
        TokenMalformed,
        TokenMissing,
        TokenRevoked,
        TokensFull,
        TokensUnknown,
        TokenUnknown,
        Unauthenticated,
    )
    from lowmark.tokens.form import (
        PASS_PREFIX,
        PREFIX,
        Secret,
        check_form,
        digest_of,
        drawn,
        is_pass,
    )
    from lowmark.tokens.records import (
        ACCESS_PREFIX,
        ADMIN,
        ADMIN_ROLE,
        NODE_ROLE,
        PASS_ROLE,
        TOKEN_PREFIX,
        Record,
        Right,
        State,
        check_name,
        node_key,
        pass_key,
        shown,
        token_key,
    )
    from lowmark.tokens.table import Caller, Scope, Table, Token

__all__ = [
    "ACCESS_PREFIX",
    "ADMIN",
    "ADMIN_ROLE",
    "NODE_ROLE",
    "PASS_PREFIX",
    "PASS_ROLE",
    "PREFIX",
    "TOKEN_PREFIX",
    "BeyondPass",
    "Caller",
    "NoSuchToken",
    "PassEnded",
    "PassesFull",
    "Record",
    "Right",
    "Scope",
    "Secret",
    "State",
    "Table",
    "Token",
    "TokenExists",
    "TokenExpired",
    "TokenMalformed",
    "TokenMissing",
    "TokenRevoked",
    "TokenUnknown",
    "TokensFull",
    "TokensUnknown",
    "Unauthenticated",
    "check_form",
    "check_name",
    "digest_of",
    "drawn",
    "is_pass",
    "node_key",
    "pass_key",
    "shown",
    "token_key",
]

__getattr__, __dir__ = face(__name__)
