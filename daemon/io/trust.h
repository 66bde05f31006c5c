/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Whose certificates are believed, with OpenSSL: a context for TLS clients that is handed to
 * libwebsockets. Its own would add the system's CAs to every CA file, look for more in a
 * folder "../share" of wherever the daemon was started, and tell nothing of why a handshake failed.
 */
#ifndef NL_IO_TRUST_H
#define NL_IO_TRUST_H

#include <openssl/ssl.h>
#include <stdbool.h>
#include <stddef.h>

struct nl_trust;

/*
 * Trusts the CAs of the file, or the system's when ca_file is NULL. Returns NULL, and *why as static text,
 * when the file cannot be read or has no certificate.
 */
struct nl_trust *nl_trust_new(const char *ca_file, const char **why);

/* Not before everything that uses its context is gone. Takes NULL. */
void nl_trust_free(struct nl_trust *trust);

SSL_CTX *nl_trust_context(const struct nl_trust *trust);

enum nl_trust_failure {
    NL_TRUST_UNKNOWN,     /* the handshake itself did not fail: a broken connection, for one */
    NL_TRUST_HANDSHAKE,   /* the two do not understand each other */
    NL_TRUST_CERTIFICATE, /* unknown CA, wrong name, dates */
};

/* Why the handshake that just failed did so. *text is static, or NULL when nothing is known. */
enum nl_trust_failure nl_trust_failure(const struct nl_trust *trust, const SSL *ssl, const char **text);

#endif
