/* SPDX-License-Identifier: Apache-2.0 */
/* Who may do what where no access rules are configured. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "daemon/model/access.h"

enum { OWN_UID = 998, OTHER_UID = 1000 };

static bool permits(uid_t uid, enum nl_right right, const char **why) {
    static const struct nl_access access = {.own_uid = OWN_UID};
    struct nl_access_question q = {.uid = uid,
                                   .gid = OWN_UID, /* a group gives nothing */
                                   .session = "default",
                                   .right = right,
                                   .topic = nl_slice_str("app/room/topic")};

    *why = NULL;
    return nl_access_permits(&access, &q, why);
}

static void everyone_may_use_the_sessions(void **state) {
    static const enum nl_right rights[] = {NL_RIGHT_SESSION, NL_RIGHT_SUBSCRIBE, NL_RIGHT_PUBLISH,
                                           NL_RIGHT_PRESENCE};
    const char *why;

    (void)state;
    for (unsigned i = 0; i < sizeof(rights) / sizeof(rights[0]); i++) {
        assert_true(permits(0, rights[i], &why));
        assert_true(permits(OWN_UID, rights[i], &why));
        assert_true(permits(OTHER_UID, rights[i], &why));
    }
}

static void the_tap_is_for_root_and_the_daemon(void **state) {
    const char *why;

    (void)state;
    assert_true(permits(0, NL_RIGHT_TAP, &why));
    assert_true(permits(OWN_UID, NL_RIGHT_TAP, &why));
    assert_false(permits(OTHER_UID, NL_RIGHT_TAP, &why));
    assert_non_null(why);
    assert_false(permits((uid_t)-1, NL_RIGHT_TAP, &why));
    assert_non_null(why);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(everyone_may_use_the_sessions),
        cmocka_unit_test(the_tap_is_for_root_and_the_daemon),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
