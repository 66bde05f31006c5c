/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libwebsockets empties OpenSSL's queue of errors before it says that a handshake failed, so
 * the reason is noted in a callback of OpenSSL, before that. There is one thread, and a failed
 * handshake is told before another one goes on: one note per context is enough.
 */
#include "daemon/io/trust.h"

#include <openssl/err.h>
#include <openssl/x509.h>
#include <stdlib.h>

#include "protocol/alloc.h"

struct nl_trust {
    SSL_CTX *context;    /* its app data is this */
    unsigned long error; /* of OpenSSL, of the handshake that was worked on last; 0 = none */
};

static void on_info(const SSL *ssl, int where, int result) {
    struct nl_trust *trust = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));

    if (where == SSL_CB_CONNECT_EXIT)
        trust->error = result <= 0 ? ERR_peek_error() : 0;
}

static bool load(SSL_CTX *context, const char *ca_file) {
    if (ca_file == NULL)
        return SSL_CTX_set_default_verify_paths(context) == 1;
    return SSL_CTX_load_verify_file(context, ca_file) == 1;
}

struct nl_trust *nl_trust_new(const char *ca_file, const char **why) {
    struct nl_trust *trust = nl_calloc(1, sizeof(*trust));

    trust->context = SSL_CTX_new(TLS_client_method());
    if (trust->context == NULL || !load(trust->context, ca_file)) {
        *why = ca_file == NULL ? "the system's CAs cannot be used"
                               : "the CA file cannot be read, or has no certificate";
        ERR_clear_error();
        nl_trust_free(trust);
        return NULL;
    }
    /* What libwebsockets expects of a context, as it retries writes from another place. */
    SSL_CTX_set_mode(trust->context, SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER | SSL_MODE_RELEASE_BUFFERS);
    SSL_CTX_set_options(trust->context, SSL_OP_NO_COMPRESSION);
    SSL_CTX_set_verify(trust->context, SSL_VERIFY_PEER, NULL);
    SSL_CTX_set_app_data(trust->context, trust);
    SSL_CTX_set_info_callback(trust->context, on_info);
    return trust;
}

void nl_trust_free(struct nl_trust *trust) {
    if (trust == NULL)
        return;
    SSL_CTX_free(trust->context);
    free(trust);
}

SSL_CTX *nl_trust_context(const struct nl_trust *trust) {
    return trust->context;
}

enum nl_trust_failure nl_trust_failure(const struct nl_trust *trust, const SSL *ssl, const char **text) {
    long verdict = SSL_get_verify_result(ssl);

    *text = NULL;
    if (verdict != X509_V_OK) {
        *text = X509_verify_cert_error_string(verdict);
        return NL_TRUST_CERTIFICATE;
    }
    if (trust->error == 0)
        return NL_TRUST_UNKNOWN;
    *text = ERR_reason_error_string(trust->error);
    return NL_TRUST_HANDSHAKE;
}
