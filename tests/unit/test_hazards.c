/* SPDX-License-Identifier: Apache-2.0 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <json-c/json.h>
#include <string.h>

#include "protocol/hazards.h"
#include "protocol/json.h"
#include "protocol/transcode.h"

static unsigned hazards_of(const char *json) {
    struct json_object *o = NULL;
    struct nl_buffer packed;
    const char *why;
    unsigned found;

    nl_buffer_init(&packed);
    assert_int_equal(nl_json_parse(nl_slice_str(json), 32, &o), NL_OK);
    assert_int_equal(nl_msgpack_from_json(&packed, o, NL_PACK_TAGGED, &why), NL_OK);
    found = nl_hazards(nl_slice(packed.bytes, packed.len));
    json_object_put(o);
    nl_buffer_deinit(&packed);
    return found;
}

/* Everything that a program without tags can say. */
static void plain_payloads_have_none(void **state) {
    (void)state;
    assert_int_equal(hazards_of("{\"a\":[1,-2,3.5,true,null,\"\xc3\xa4\"],\"b\":{\"c\":{},\"d\":[]}}"), 0);
    assert_int_equal(hazards_of("{\"x\":\"\"}"), 0);
    assert_int_equal(hazards_of("{\"x\":{\"$bytes\":\"w6Q=\"}}"), 0); /* UTF-8 */
    assert_int_equal(hazards_of("{\"x\":{\"$ext\":[1,\"/w==\"]}}"), 0);
    assert_int_equal(hazards_of("{\"x\":{\"$map\":[[1,2],[null,3],[true,4],[-1,5]]}}"), 0);
}

static void bytes_are_found_wherever_they_are(void **state) {
    (void)state;
    assert_int_equal(hazards_of("{\"x\":{\"$bytes\":\"/w==\"}}"), NL_HAZARD_BYTES);
    assert_int_equal(hazards_of("{\"x\":{\"$str\":\"w3g=\"}}"), NL_HAZARD_BYTES);
    assert_int_equal(hazards_of("{\"x\":[1,[2,{\"y\":{\"$str\":\"7aCA\"}}]]}"), NL_HAZARD_BYTES);
    assert_int_equal(hazards_of("{\"x\":{\"$map\":[[{\"$bytes\":\"gA==\"},1]]}}"), NL_HAZARD_BYTES);
    assert_int_equal(hazards_of("{\"x\":{\"$map\":[[[{\"$bytes\":\"gA==\"}],1]]}}"),
                     NL_HAZARD_BYTES | NL_HAZARD_COMPOUND_KEY);
}

static void keys_are_found_and_values_are_not_keys(void **state) {
    (void)state;
    assert_int_equal(hazards_of("{\"x\":{\"$map\":[[1.5,1]]}}"), NL_HAZARD_FLOAT_KEY);
    assert_int_equal(hazards_of("{\"x\":{\"$map\":[[1,1.5],[2,[1.5]],[3,{}]]}}"), 0);
    assert_int_equal(hazards_of("{\"x\":{\"$map\":[[[1],1]]}}"), NL_HAZARD_COMPOUND_KEY);
    assert_int_equal(hazards_of("{\"x\":{\"$map\":[[{\"a\":1},1]]}}"), NL_HAZARD_COMPOUND_KEY);
    assert_int_equal(hazards_of("{\"x\":{\"$map\":[[1,{\"$map\":[[2,2],[0.5,3]]}],[4,4]]}}"),
                     NL_HAZARD_FLOAT_KEY);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(plain_payloads_have_none),
        cmocka_unit_test(bytes_are_found_wherever_they_are),
        cmocka_unit_test(keys_are_found_and_values_are_not_keys),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
