"""The chain to write with, and who can read what it encrypts."""

from __future__ import annotations

from streamxf.chain import Chain, ChainLike
from streamxf.codec import Codec
from streamxf.codecs.encrypt import Encrypt
from streamxf.dcp.writer import DEFAULT_CHAIN
from streamxf.errors import KeyMissingError, ParameterError
from streamxf.keys import KeysLike, SignerLike

_WORD = "encrypt"


def chain_for(
    chain: ChainLike | None, encrypt_to: KeysLike, signer: SignerLike | None, *, was_encrypted: bool
) -> Chain:
    """Make the chain to write with; by default that of writers, and `Encrypt` if there are keys for it. The keys belong
    to the word ``encrypt`` of a chain in text form.

    Raises
    ------
    ParameterError
        If the chain has no place for the keys, or the default one would decrypt what was encrypted.
    KeyMissingError
        If ``encrypt`` has no keys.
    ChainError, UnknownCodecError
        As `Chain.parse`.
    """
    if encrypt_to is None and signer is not None:
        raise ParameterError("signer signs what is encrypted; it needs encrypt_to, the keys of those who may read")
    if chain is None:
        if encrypt_to is not None:
            return Chain([*DEFAULT_CHAIN, Encrypt(encrypt_to, signer=signer)])
        if was_encrypted:
            raise ParameterError(
                "the source is encrypted, and the default chain does not encrypt: give the keys of those who may read "
                "the copy (encrypt_to), or a chain without encrypt to write it unencrypted"
            )
        return Chain(DEFAULT_CHAIN)
    if not isinstance(chain, str):
        if encrypt_to is not None:
            raise ParameterError("encrypt_to= goes with a chain in text form; put Encrypt(...) into this one")
        return Chain.of(chain)
    words = [word.strip() for word in chain.split("+")] if chain.strip() else []
    if _WORD in words and encrypt_to is None:
        raise KeyMissingError(
            "the chain encrypts, and no key to encrypt to was given: give the keys of those who may read (encrypt_to)"
        )
    if encrypt_to is not None and _WORD not in words:
        raise ParameterError("keys to encrypt to were given, and the chain does not encrypt: add '+encrypt' to it")
    codecs: list[Codec] = []
    for word in words:
        codecs += [Encrypt(encrypt_to, signer=signer)] if word == _WORD else list(Chain.parse(word))
    return Chain(codecs)
