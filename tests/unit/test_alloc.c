/* SPDX-License-Identifier: Apache-2.0 */
/* Running out of memory: the process says who it is, and ends. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <cmocka.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "protocol/alloc.h"

#define MORE_THAN_THERE_IS ((size_t)1 << 48) /* beyond the address space */

/* The sanitizer's allocator ends the process in words of its own unless told otherwise. */
const char *__asan_default_options(void);
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1";
}

/* Asks for too much in a child; what it said is in text, and its exit status is returned. */
static int exhaust(char *text, size_t size) {
    int fds[2], status;
    size_t len = 0;
    ssize_t n;
    pid_t child;

    assert_return_code(pipe(fds), 0);
    child = fork();
    if (child == 0) {
        dup2(fds[1], STDERR_FILENO);
        free(nl_malloc(MORE_THAN_THERE_IS));
        _exit(EXIT_SUCCESS);
    }
    close(fds[1]);
    while ((n = read(fds[0], text + len, size - 1 - len)) > 0)
        len += (size_t)n;
    text[len] = '\0';
    close(fds[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    assert_true(WIFEXITED(status));
    return WEXITSTATUS(status);
}

static void test_out_of_memory_names_the_program(void **state) {
    char text[4096];
    (void)state;
    assert_int_equal(exhaust(text, sizeof(text)), EXIT_FAILURE);
    assert_non_null(strstr(text, "test_alloc: out of memory (281474976710656 bytes)\n"));
    assert_null(strstr(text, "nolagd"));
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_out_of_memory_names_the_program),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
