/* SPDX-License-Identifier: Apache-2.0 */
/* The table of errors.h as three functions. */
#include "protocol/errors.h"

static const struct {
    const char *name, *hint;
    int code;
} errors[] = {[NL_OK] = {"ok", "", 0},
#define X(id, code, wire, hint) [NL_ERROR_##id] = {wire, hint, code},
              NL_ERRORS(X)
#undef X
};

const char *nl_error_name(enum nl_error e) {
    return errors[e].name;
}

int nl_error_code(enum nl_error e) {
    return errors[e].code;
}

const char *nl_error_hint(enum nl_error e) {
    return errors[e].hint;
}
