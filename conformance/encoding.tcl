# Since Redis 7.2, as here, small lists and small sets are listpacks. The tests of 7.0 call them by what they were then.
proc assert_encoding {enc key} {
    set val [r object encoding $key]
    if {$val eq {listpack}} {
        switch [r type $key] {
            list {set val quicklist}
            set {set val hashtable}
        }
    }
    assert_match $enc $val
}
