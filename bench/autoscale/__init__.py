"""A day of a region under several autoscalers, in virtual time: what each costs, what users get.

Our rule is what is deployed: the router's own advisor and admission control, and the manifests of
`deploy/components`, parsed (`bench.autoscale.kubernetes` does what KEDA and its HPA do with them).
The others are written anew from what they published (`bench.autoscale.policies`) and stand before
the same router and replicas, so that nothing but the number of replicas differs.
"""
