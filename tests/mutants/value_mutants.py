"""Values: each arrives as it is or is refused, and none comes into an error or a log."""

from __future__ import annotations

from typing import Final

from tests.mutants.mutant import Mutant, mutant

_REFUSALS: Final = "offsetstore/postgres/errors.py"
_VALUES: Final = "offsetstore/writers/arrow/values.py"
_ENCODING: Final = "offsetstore/writers/arrow/encoding.py"
_JSON: Final = "offsetstore/writers/arrow/json_text.py"

_ERRORS: Final = "tests/integration/writers/test_values_in_errors.py::"
_SERVER: Final = "tests/integration/postgres/test_refused_by_the_server.py::"
_HOSTILE: Final = "tests/property/test_hostile_values.py::"
_MISFITS: Final = "tests/integration/writers/test_misfits.py::"
_TYPES: Final = "tests/integration/writers/test_types.py::"
_PAIRS: Final = "tests/integration/spark/test_type_pairs.py::"
_TASKS: Final = "tests/unit/spark/test_task.py::"
_URL: Final = "tests/unit/postgres/test_url.py::"

_KEEPS_ITS_STATE: Final = f"{_ERRORS}test_an_error_that_is_not_the_rows_keeps_class_and_state_and_no_value"
_FROM_NOTHING: Final = f"{_SERVER}test_what_became_ours_was_raised_from_nothing_that_quotes_a_row"
_MOMENT: Final = f"{_HOSTILE}test_a_moment_of_any_bits_arrives_or_is_refused"

ERRORS: Final[tuple[Mutant, ...]] = (
    mutant(
        "strip-at-the-writers",
        (
            _REFUSALS,
            "            return stripped(error)\n        if is_swallowed",
            "            return error\n        if is_swallowed",
        ),
        tests=(_KEEPS_ITS_STATE,),
        why="The line of a COPY that was cancelled would be logged with the error's CONTEXT.",
    ),
    mutant(
        "strip-what-a-function-raised",
        (
            _REFUSALS,
            '    if _is_of_a_function(error):\n        return "raised',
            '    if not error:\n        return "raised',
        ),
        tests=(f"{_ERRORS}test_what_a_trigger_says_is_not_in_the_error_that_a_user_raises_from_its",),
        why="A trigger may quote the row in its message.",
    ),
    mutant(
        "strip-the-state-away",
        (_REFUSALS, 'info=cast("Any", names) or None', "info=None"),
        tests=(f"{_ERRORS}test_a_user_s_own_error_stays_and_what_it_was_raised_from_is_stripped",),
        why="An application that catches its own IntegrityError could not tell which constraint it was.",
    ),
    mutant(
        "strip-at-the-transaction",
        (
            _REFUSALS,
            "    if isinstance(error, psycopg.Error):\n        return _stripped_driver(error).with",
            "    if isinstance(error, psycopg.Error):\n        return error.with",
        ),
        (
            _REFUSALS,
            "    if isinstance(error, StatementError):\n        return _stripped_alchemy(error).with",
            "    if isinstance(error, StatementError):\n        return error.with",
        ),
        tests=(_FROM_NOTHING,),
        why="LockTimeout and TransactionLost would be raised from an error that quotes the row.",
    ),
    mutant(
        "strip-at-the-end-of-a-block",
        (
            _REFUSALS,
            "        return stripped(error)\n    ours",
            "        return error\n    ours",
        ),
        tests=(f"{_SERVER}test_what_sql_in_a_transaction_of_the_store_s_raises_quotes_no_row",),
        why="What is refused in a transaction that is not a job's quotes the key.",
    ),
    mutant(
        "strip-what-the-users-own-was-raised-from",
        (_REFUSALS, "        strip_chain(error)  #", "        error.args  #"),
        tests=(f"{_ERRORS}test_a_user_s_own_error_stays_and_what_it_was_raised_from_is_stripped",),
        why="An Execute that raises its own error from the database's would log both.",
    ),
    mutant(
        "errors-of-the-users-own-sql",
        (
            "offsetstore/writers/execute.py",
            "        with refusals(None, sql_of=repr(self)):\n",
            "        if True:\n",
        ),
        tests=(f"{_ERRORS}test_a_row_that_an_execute_s_sql_is_refused_for_is_a_refused_row",),
        why="The search would not name the record, and the log would have the parameters and the key.",
    ),
    mutant(
        "strip-in-a-task",
        ("offsetstore/spark/executors/task.py", 'cast("Exception", stripped(error))', "error"),
        tests=(f"{_TASKS}test_an_error_of_the_database_is_sent_without_what_quotes_a_row",),
        why="What a writer of the application's own raises in a task would be logged by the driver with the row.",
    ),
    mutant(
        "errors-in-a-task-that-do-not-pickle",
        (
            "offsetstore/spark/executors/task.py",
            "        return pickle.dumps(stand_in)\n",
            "        return pickle.dumps(SinkError(str(stand_in)))\n",
        ),
        tests=(f"{_TASKS}test_an_error_that_can_t_be_sent_does_not_become_one_of_ours_whose_text_is_logged",),
        why="The sink logs the text of our own errors, and this one's is of another author.",
    ),
    mutant(
        "cancelled-is-typed",
        (_REFUSALS, '_CANCELLED = "57014"', '_CANCELLED = "none"'),
        tests=(f"{_SERVER}test_a_cancelled_statement_repeats_the_whole_function",),
        why="A statement that ran into a timeout once would end the job, with the driver's own error.",
    ),
    mutant(
        "read-only-is-typed",
        (_REFUSALS, '_READ_ONLY = "25006"', '_READ_ONLY = "none"'),
        tests=(f"{_SERVER}test_a_database_that_became_read_only_is_left_for_a_new_connection",),
        why="After a failover the job would end with the driver's own error.",
    ),
    mutant(
        "read-only-connections-are-left",
        ("offsetstore/postgres/session.py", '        return b"on" in told', '        return b"never" in told'),
        tests=(f"{_SERVER}test_a_database_that_became_read_only_is_left_for_a_new_connection",),
        why="Each attempt would get the same connection, to what is the standby now.",
    ),
    mutant(
        "names-of-jdbc-parameters",
        (
            "offsetstore/postgres/jdbc.py",
            "its_own = sorted(set(_ITS_OWN.split()).intersection(ignored))",
            "its_own = sorted(ignored)",
        ),
        tests=(f"{_URL}test_the_rest_of_a_password_that_has_an_ampersand_is_counted_and_not_logged",),
        why="The rest of a password that has an & in it would be logged as a parameter's name.",
    ),
    mutant(
        "parameters-in-the-wrong-place",
        ("offsetstore/postgres/url.py", 'for name in ("host", "dbname", "user"):', "for name in ():"),
        tests=(f"{_URL}test_parameters_in_the_wrong_place_are_refused_before_a_server_repeats_them",),
        why="The server's error would repeat the name of the database, and with it the password.",
    ),
)

CONVERSIONS: Final[tuple[Mutant, ...]] = (
    mutant(
        "range-of-dates",
        (_VALUES, "_DAYS = (-_EPOCH_JULIAN, 2_147_483_493 - _EPOCH_JULIAN)", "_DAYS = (-(2**31), 2**31 - 1)"),
        tests=(_MOMENT,),
        why="The smallest number that pgpq takes is PostgreSQL's -infinity, and would be written so.",
    ),
    mutant(
        "range-of-timestamps",
        (_VALUES, "_MICROSECONDS = (-_EPOCH_JULIAN * 86_400_000_000, ", "_MICROSECONDS = (-(2**63), "),
        tests=(_MOMENT,),
        why="The same for timestamps.",
    ),
    mutant(
        "range-of-times",
        (_VALUES, "_OF_A_DAY = (0, 86_400_000_000 - 1)", "_OF_A_DAY = (-(2**63), 2**63 - 1)"),
        tests=(_MOMENT,),
        why="Python's time of day begins anew at midnight: the next day's first second would be written.",
    ),
    mutant(
        "times-in-json",
        (_JSON, "CHECKS: Final = (NO_TIME_OF_DAY, NOT_FINITE)", "CHECKS: Final = (NOT_FINITE,)"),
        tests=(f"{_HOSTILE}test_what_json_can_t_hold_is_refused",),
        why="The same inside JSON.",
    ),
    mutant(
        "signs-of-intervals",
        (_VALUES, "(NUL, _SIGN_OF_STYLE, _BELOW_MICROSECONDS)", "(NUL, _BELOW_MICROSECONDS)"),
        tests=(f"{_TYPES}test_a_string_whose_sign_depends_on_the_style_of_intervals_is_no_interval",),
        why="A role's IntervalStyle would decide whether an interval's days are negative.",
    ),
    mutant(
        "texts-of-which-a-part-is-dropped",
        ("offsetstore/writers/arrow/casts.py", "replace(text, after=LOSSY_TEXTS[kind])", "text"),
        tests=(f"{_TYPES}test_a_string_of_which_postgresql_would_drop_a_part_is_refused",),
        why="PostgreSQL leaves out the date and the zone of a text for a time, and rounds a seventh digit.",
    ),
    mutant(
        "internals-of-spark-s-types",
        ("offsetstore/writers/arrow/casts.py", "if has_type(source, _is_only_spark_s) or", "if False or"),
        tests=("tests/docs/test_types_page.py",),
        why="A GEOMETRY inside a struct would be taken for JSON, and its internals be stored.",
    ),
    mutant(
        "variants-as-their-internals",
        ("offsetstore/spark/schemas.py", "if has_type(kind, is_variant)]", "if False]"),
        tests=(f"{_PAIRS}test_what_holds_a_variant_becomes_a_string_of_json",),
        why="What Spark keeps of a VARIANT would be stored as JSON.",
    ),
    mutant(
        "digits-of-a-float32",
        (_JSON, "with_own_digits(array).to_pylist(", "array.to_pylist("),
        tests=(f"{_TYPES}test_a_float32_in_json_has_its_own_digits_at_any_depth",),
        why="0.1 would be 0.10000000149011612.",
    ),
    mutant(
        "hollow-arrays",
        (_VALUES, "fill_null(_KERNELS.list_value_length(array), 0), 0)", "fill_null(None, 0), 0)"),
        tests=(f"{_HOSTILE}test_an_array_of_arrays_that_postgresql_does_not_have_is_refused",),
        why="PostgreSQL makes an empty array of an array of empty ones.",
    ),
    mutant(
        "conversions-to-python",
        (
            _ENCODING,
            "[self._fit(*pair, _python_values) for pair in zip(self._matches, _columns(batch), strict=True)]",
            "[_python_values(array) for array in _columns(batch)]",
        ),
        tests=(f"{_HOSTILE}test_a_text_of_any_bytes_arrives_or_is_refused",),
        why="Invalid UTF-8 would end the job with a UnicodeDecodeError, and no record named.",
    ),
    mutant(
        "conversions-by-pgpq",
        (
            _ENCODING,
            "        with suppress(*CONVERSION_ERRORS):\n            return encoder.write_batch(batch)\n",
            "        if True:\n            return encoder.write_batch(batch)\n",
        ),
        (_VALUES, "_MICROSECONDS = (-_EPOCH_JULIAN * 86_400_000_000, ", "_MICROSECONDS = (-(2**63), "),
        tests=(_MOMENT,),
        why="What pgpq refuses would end the job with a ValueError. The range would see it first: both go.",
    ),
    mutant(
        "conversions-by-psycopg",
        (
            "offsetstore/writers/arrow/copying.py",
            "    with suppress(*CONVERSION_ERRORS):\n        copy.write_row(row)\n        return\n",
            "    if True:\n        copy.write_row(row)\n        return\n",
        ),
        tests=(f"{_HOSTILE}test_a_letter_that_the_connection_s_encoding_lacks_is_refused",),
        why="A letter that the connection's encoding lacks would end the job with a UnicodeEncodeError that quotes it.",
    ),
)

MISFITS: Final[tuple[Mutant, ...]] = (
    mutant(
        "values-of-the-next-rows",
        (_VALUES, "    if array.type == target or not is_list(array.type):", "    if True:"),
        tests=(f"{_MISFITS}test_a_list_is_not_refused_for_a_value_of_the_row_after_it",),
        why="Arrow casts what is in a list's buffers: a good record would become a letter for its neighbour's value.",
    ),
    mutant(
        "nulls-that-a-trigger-fills-in",
        ("offsetstore/writers/table/catalogue.py", "WHERE tgtype & 7 = 7 AND", "WHERE tgtype & 7 = 9 AND"),
        tests=(f"{_MISFITS}test_a_trigger_may_fill_in_a_null",),
        why="A record that the table takes would become a letter.",
    ),
    mutant(
        "nulls-of-domains",
        ("offsetstore/writers/table/catalogue.py", "a.attnotnull AND declared.typtype <> 'd' AND", "a.attnotnull AND"),
        tests=(f"{_MISFITS}test_a_null_is_left_to_the_database_by_an_upsert_and_for_a_domain",),
        why="The letter's error would not be the database's own, which is the domain's.",
    ),
    mutant(
        "misfits-of-another-write",
        ("offsetstore/writers/arrow/misfits.py", ' and goes_with_write(writer, "misfits")', ""),
        tests=(f"{_MISFITS}test_a_writer_that_has_a_write_of_its_own_is_not_asked",),
        why="A write of the application's own may correct the values that would become letters.",
    ),
)

_SETTINGS: Final = "tests/integration/postgres/test_hostile_settings.py::"
_SESSION: Final = "offsetstore/postgres/session.py"
_STATEMENTS: Final = "offsetstore/postgres/statements.py"
_PINNED: Final = {
    "client_encoding": "UTF8",
    "standard_conforming_strings": "on",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "array_nulls": "on",
    "xmloption": "content",
}

SETTINGS: Final[tuple[Mutant, ...]] = (
    *(
        mutant(
            f"pin-{setting.replace('_', '-')}",
            (
                _STATEMENTS,
                f"set_config('{setting}', '{value}', true),\n",
                f"current_setting('{setting}'),\n",
            ),
            tests=(
                f"{_SETTINGS}test_triggers_and_own_sql_live_with_the_role_s_path_and_styles_and_all_else_is_postgresql_s",
            ),
            why="A role with another default would store other bytes, or blame a good record.",
        )
        for setting, value in _PINNED.items()
    ),
    mutant(
        "pin-lc-monetary",
        (_STATEMENTS, "set_config('lc_monetary', 'C', true)) AS pinned", "current_setting('lc_monetary')) AS pinned"),
        tests=(
            f"{_SETTINGS}test_triggers_and_own_sql_live_with_the_role_s_path_and_styles_and_all_else_is_postgresql_s",
        ),
        why="An amount as money would be read in the role's currency and format.",
    ),
    mutant(
        "encoding-outside-of-sessions",
        (_STATEMENTS, "set_config('client_encoding', 'UTF8', true) AS client", "'UTF8' AS client"),
        tests=(f"{_SETTINGS}test_a_group_s_name_may_have_letters_that_the_role_s_encoding_has_not",),
        why="Who holds a lock could not be told of a group whose name has letters that the role's encoding lacks.",
    ),
    mutant(
        "texts-of-any-session-in-one-message",
        (
            _SESSION,
            "        return all(self._psycopg.pgconn.parameter_status(name) in",
            "        return True or all(self._psycopg.pgconn.parameter_status(name) in",
        ),
        tests=(f"{_SETTINGS}test_no_default_of_a_role_changes_a_byte[DateStyle]",),
        why="The server would read the first statement in the role's encoding, and times could not be read.",
    ),
    mutant(
        "results-as-text",
        (_SESSION, "row_factory=namedtuple_row, binary=True)", "row_factory=namedtuple_row)"),
        tests=(f"{_SETTINGS}test_no_default_of_a_role_changes_a_byte[IntervalStyle]",),
        why="A store in a database with another style of times or intervals could not be read.",
    ),
    mutant(
        "triggers-and-policies-are-passed-over",
        (_SESSION, "if (value := getattr(found, name)) != expected:", "if (value := getattr(found, name)) is None:"),
        tests=(f"{_SETTINGS}test_so_is_a_session_in_which_own_sql_has_left_that_setting",),
        why="Rows would be stored past the target's triggers, foreign keys and policies.",
    ),
    mutant(
        "databases-in-another-encoding",
        ("offsetstore/postgres/database.py", '    if found != "UTF8":', '    if found == "none":'),
        tests=(f"{_SETTINGS}test_a_database_that_is_not_in_utf_8_is_refused_by_name",),
        why="Records with letters that it lacks would be blamed one by one.",
    ),
)

_NUMBERS: Final = "tests/unit/protocol/test_numbers.py::"
_CHECKS: Final = "offsetstore/protocol/numbers.py"
_NO_TIME: Final = f"{_NUMBERS}test_what_is_no_time_is_refused"
_NOT_WHOLE: Final = f"{_NUMBERS}test_what_is_no_whole_number_is_refused"
_OF_A_STORE: Final = f"{_NUMBERS}test_the_numbers_of_a_store_are_refused_before_anything_is_asked"
_OF_OFFSETS: Final = f"{_NUMBERS}test_a_shift_a_partition_and_a_range_are_of_whole_numbers"

NUMBERS: Final[tuple[Mutant, ...]] = (
    mutant(
        "flag-as-a-number",
        (
            _CHECKS,
            "is_whole = isinstance(value, int) and not isinstance(value, bool)",
            "is_whole = isinstance(value, int)",
        ),
        tests=(_NOT_WHOLE,),
        why="A limit of True would be a limit of 1.",
    ),
    mutant(
        "half-as-a-number",
        (_CHECKS, "is_whole = isinstance(value, int) and", "is_whole = isinstance(value, (int, float)) and"),
        tests=(_NOT_WHOLE,),
        why="A buffer that is to be flushed at 1.5 rows, or at infinitely many, would be taken.",
    ),
    mutant(
        "flag-as-a-time",
        (_CHECKS, "isinstance(value, (int, float)) and not isinstance(value, bool)", "isinstance(value, (int, float))"),
        tests=(_NO_TIME,),
        why="Tick(every=True) would be called each second.",
    ),
    mutant(
        "infinity-as-a-time",
        (_CHECKS, "(0 < seconds <= most or", "(0 < seconds or"),
        tests=(_NO_TIME,),
        why="Flush(seconds=inf) would end in an error of Python's clock, hours later.",
    ),
    mutant(
        "flag-as-an-offset",
        ("offsetstore/offsets.py", "    if isinstance(value, bool):\n        return None\n", ""),
        tests=(_OF_OFFSETS,),
        why="A reset to True would be one to 1.",
    ),
    mutant(
        "numpy-s-number-as-an-offset",
        (_CHECKS, "    number = whole(value)\n", "    number = value if type(value) is int else None\n"),
        tests=(f"{_NUMBERS}test_offsets_and_partitions_of_numpy_become_ints",),
        why="An offset of a frame's column would fail in json, or in the database.",
    ),
    *(
        mutant(
            name,
            (f"offsetstore/{file}.py", old, new),
            tests=(test,),
            why="A number that makes no sense would be taken, and do harm hours later, or none of what was meant.",
        )
        for name, file, old, new, test in (
            (
                "rows-of-a-flush",
                "processing/buffer",
                '        check_whole("Flush.rows", self.rows, "rows", least=1)\n',
                "",
                f"{_NOT_WHOLE}[Flush.rows-1.5]",
            ),
            (
                "seconds-of-a-flush",
                "processing/buffer",
                '        check_seconds("Flush.seconds", self.seconds)\n',
                "",
                f"{_NO_TIME}[Flush.seconds-inf]",
            ),
            (
                "time-of-a-tick",
                "processing/between",
                '        check_seconds("every", self.every)\n',
                "",
                f"{_NO_TIME}[Tick.every-True]",
            ),
            (
                "lock-timeout-of-a-store",
                "protocol/retries",
                '        check_seconds("Timeouts.lock", self.lock, or_zero=True)\n',
                "",
                f"{_NO_TIME}[Timeouts.lock-nan]",
            ),
            (
                "attempts-of-retries",
                "protocol/retries",
                '        check_whole("Retries.attempts", self.attempts, least=1)\n',
                "",
                f"{_NOT_WHOLE}[Retries.attempts-1.5]",
            ),
            (
                "retries-of-a-record",
                "processing/dead_letters",
                '        check_whole("max_retries", self.max_retries)\n',
                "",
                f"{_NOT_WHOLE}[DeadLetters.max_retries-1.5]",
            ),
            (
                "lock-timeout-of-a-transaction",
                "store/transaction",
                '        check_seconds("lock_timeout", lock_timeout, or_zero=True)\n',
                "        pass\n",
                _OF_A_STORE,
            ),
            (
                "time-to-wait-for-a-takeover",
                "store/claim",
                '        check_seconds("takeover_timeout", self.takeover_timeout, or_zero=True)\n',
                "",
                _OF_A_STORE,
            ),
            (
                "offset-of-a-mark",
                "protocol/marking",
                '    next_offset = as_offset("next_offset", next_offset)\n',
                "",
                _OF_OFFSETS,
            ),
        )
    ),
)

SINK: Final[tuple[Mutant, ...]] = (
    mutant(
        "strip-at-the-sink",
        ("offsetstore/spark/sink.py", "            self.error = stripped(error)\n", "            self.error = error\n"),
        tests=("tests/integration/spark/test_canary.py",),
        why="What a writer of the application's own raises would reach Spark's log with the row.",
    ),
)

VALUES: Final = (*ERRORS, *CONVERSIONS, *MISFITS, *SETTINGS, *NUMBERS, *SINK)
