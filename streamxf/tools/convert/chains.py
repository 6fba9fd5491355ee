"""The chain that is asked for, and for whom it encrypts."""

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
    """Make the chain to write with.

    Parameters
    ----------
    chain : Chain, text or codecs, optional
        By default that of writers, with encryption where there are keys for it.
    encrypt_to : KeysLike
        Who may read, for the word ``encrypt`` in a text.
    signer : SigningKey or location, optional
        Shows who wrote, for the same word.
    was_encrypted : bool
        Whether what is to be written was encrypted.

    Raises
    ------
    ParameterError
        If the keys have no place in the chain, or a default would write in the clear what was encrypted.
    KeyMissingError
        If ``encrypt`` has no keys.
    ChainError, UnknownCodecError
        As `Chain.parse`.
    """
    if encrypt_to is None and signer is not None:
        raise ParameterError("signer says who encrypted; it needs encrypt_to, the keys of those who may read")
    if chain is None:
        if encrypt_to is not None:
            return Chain([*DEFAULT_CHAIN, Encrypt(encrypt_to, signer=signer)])
        if was_encrypted:
            raise ParameterError(
                "the source is encrypted, and the default chain does not encrypt: say who may read the copy "
                "(encrypt_to), or give a chain without encrypt to write it in the clear"
            )
        return Chain(DEFAULT_CHAIN)
    if not isinstance(chain, str):
        if encrypt_to is not None:
            raise ParameterError("encrypt_to= goes with a chain in text form; put Encrypt(...) into this one")
        return Chain.of(chain)
    words = [word.strip() for word in chain.split("+")] if chain.strip() else []
    if _WORD in words and encrypt_to is None:
        raise KeyMissingError(
            "the chain encrypts, and there is no key to encrypt to: give the keys of those who may read (encrypt_to)"
        )
    if encrypt_to is not None and _WORD not in words:
        raise ParameterError("there are keys to encrypt to, and the chain does not encrypt: add '+encrypt' to it")
    codecs: list[Codec] = []
    for word in words:
        codecs += [Encrypt(encrypt_to, signer=signer)] if word == _WORD else list(Chain.parse(word))
    return Chain(codecs)
