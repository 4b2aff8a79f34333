"""What reading a certificate, a request for one or a key can fail with."""


def unreadable_certificate() -> tuple[type[Exception], ...]:
    """Errors of bytes that are no certificate, request or key that could be used; the package has no common one."""
    from cryptography import x509
    from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm

    own = (x509.InvalidVersion, x509.DuplicateExtension, x509.ExtensionNotFound, x509.UnsupportedGeneralNameType)
    return (ValueError, TypeError, InvalidSignature, UnsupportedAlgorithm, *own)
